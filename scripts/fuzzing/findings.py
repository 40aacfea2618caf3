"""What a campaign found: differences with their cases, counted by kind, saved as programs that run by themselves.

outputs/fuzz/<seed>/<number>.py     the shrunk case; its head says what differs
outputs/fuzz/<seed>/summary.json    graphs by engine, hours, graphs a second, findings by kind
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.fuzzing.case import Case
from scripts.fuzzing.judge import Difference
from scripts.fuzzing.kinds import KINDS


@dataclass(frozen=True)
class Finding:
    """Case `number` of the campaign's seed, run by `engine` on `device`. `case` is shrunk where that was possible."""

    number: int
    engine: str
    differences: tuple[Difference, ...]
    case: Case
    device: str = "cpu"

    @property
    def kind(self) -> str:
        return self.differences[0].kind

    @property
    def signature(self) -> str:
        """Findings of one signature are likely one fault: the kind, and the operators that are left."""
        names = sorted({_operator(step.code) for step in self.case.steps})
        return f"{self.kind}: {', '.join(names)}"

    def text(self) -> str:
        head = [f"# case {self.number}, engine {self.engine}"]
        head += [f"# {each.kind} {each.where}: {each.what}".replace("\n", " ")[:400] for each in self.differences]
        return "\n".join(head) + "\n" + self.case.text(self.device)


def _operator(code: str) -> str:
    """The first name that a step calls, or the symbols of an expression."""
    named = re.search(r"([A-Za-z_]\w*)\(", code)
    return named.group(1) if named else re.sub(r"[\w\s.{}]", "", code) or code


@dataclass
class Summary:
    """Counts of a campaign. `graphs` by engine; `asserted`: those of them on which eager itself asserts on the device;
    seconds are wall-clock."""

    seed: int
    graphs: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    asserted: int = 0

    @property
    def total(self) -> int:
        return sum(self.graphs.values())

    def text(self) -> str:
        by_engine = ", ".join(f"{count} {engine}" for engine, count in sorted(self.graphs.items()))
        rate = self.total / self.seconds if self.seconds else 0.0
        lines = [f"{self.total} graphs ({by_engine}) in {self.seconds / 3600:.2f} hours, {rate:.2f} a second"]
        if self.asserted:
            lines.append(f"  {self.asserted} of them compare nothing: eager asserts on the device")
        for kind, count in Counter(finding.kind for finding in self.findings).most_common():
            lines.append(f"  {count} x {kind}: {KINDS[kind]}")
        for signature, count in Counter(finding.signature for finding in self.findings).most_common():
            example = next(finding for finding in self.findings if finding.signature == signature)
            lines.append(f"    {count} x {signature} (case {example.number})")
        return "\n".join(lines if self.findings else [*lines, "  no difference"])

    def to_dict(self) -> dict[str, object]:
        return {
            "seed": self.seed,
            "graphs": dict(self.graphs),
            "hours": self.seconds / 3600,
            "eager_asserts": self.asserted,
            "graphs_per_second": self.total / self.seconds if self.seconds else 0.0,
            "findings": dict(Counter(finding.kind for finding in self.findings)),
            "signatures": dict(Counter(finding.signature for finding in self.findings)),
        }


def save(summary: Summary, folder: Path, new: Sequence[Finding] = ()) -> None:
    """Write `new` findings and the summary into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for finding in new:
        (folder / f"{finding.number}.py").write_text(finding.text())
    (folder / "summary.json").write_text(json.dumps(summary.to_dict(), indent=2) + "\n")

"""Sums over records: a table by dtype, and the failures by kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Exceptions:
    """The data of `exceptions.yaml`.

    uninitialised   operator -> why its values are of no account
    unwritten       operator -> (positions of its results whose values are of no account, reason)
    differs         (pattern of operators, dtypes or () for all, reason)
    """

    uninitialised: dict[str, str]
    unwritten: dict[str, tuple[tuple[int, ...], str]]
    differs: tuple[tuple[re.Pattern[str], tuple[str, ...], str], ...]

    def reason(self, record: Record) -> str:
        """Why `record` may have failures; empty if it may not."""
        for pattern, dtypes, reason in self.differs:
            if pattern.fullmatch(record["op"]) and (not dtypes or record["dtype"] in dtypes):
                return reason
        return ""


def read_exceptions(path: Path = Path(__file__).parent / "exceptions.yaml") -> Exceptions:
    """Raises `KeyError` where an entry lacks its operator or its reason."""
    data = yaml.safe_load(path.read_text())
    differs = tuple(
        (re.compile(entry["op"]), tuple(entry.get("dtypes", ())), entry["reason"]) for entry in data["differs"]
    )
    unwritten = {name: (tuple(positions), reason) for name, (positions, reason) in data["unwritten"].items()}
    return Exceptions(data["uninitialised"], unwritten, differs)


def failed(record: Record, exceptions: Exceptions) -> bool:
    """Whether `record` has a failure that no exception names."""
    return bool(record["failures"]) and not exceptions.reason(record)


def summary(records: Iterable[Record], exceptions: Exceptions) -> str:
    """A Markdown table, one row a dtype.

    agree      operators all of whose samples agree
    compiled   operators of which torchweld compiled at least a graph; Dynamo leaves the others to eager
    """
    rows = [
        "| dtype | operators | agree | excepted | differ | compiled | samples | by layout only | refused by eager |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    by_dtype: dict[str, list[Record]] = {}
    for record in records:
        by_dtype.setdefault(record["dtype"], []).append(record)
    for dtype, found in [*by_dtype.items(), ("all", [record for each in by_dtype.values() for record in each])]:
        wrong = sum(failed(record, exceptions) for record in found)
        excepted = sum(bool(record["failures"]) for record in found) - wrong
        sums = [sum(record[name] for record in found) for name in ("samples", "layout_only", "refused")]
        compiled = sum(record["graphs"] > 0 for record in found)
        cells = [dtype, len(found), len(found) - wrong - excepted, excepted, wrong, compiled, *sums]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def failures(records: Sequence[Record], exceptions: Exceptions) -> str:
    """The failures that no exception names: how many of each kind, then one line an operator and dtype."""
    wrong = [record for record in records if failed(record, exceptions)]
    kinds = Counter(failure["kind"] for record in wrong for failure in record["failures"])
    lines = [f"{kind}: {count} samples" for kind, count in kinds.most_common()]
    for record in wrong:
        first = record["failures"][0]
        count = f"{len(record['failures'])} of {record['samples']}"
        where = "" if first["sample"] is None else f" [{first['sample']}] {first['call']}"
        lines.append(f"{record['op']} {record['dtype']} ({count}) {first['kind']}: {first['reason']}{where}")
    return "\n".join(lines)

"""`dump=true`: every level of the compiler as a numbered file in the run folder, in the order it came to be.

    dump/00-capture-graph.txt      01-rewrite-graph.txt     02-precision-graph.txt     03-fusion-program.txt
    dump/04-buffers-program.txt    04-buffers-arena.svg     05-autotune-schedules.txt  06-codegen-<source file>
    dump/07-explain.txt

With several graphs, the second one's files begin with `graph1-`, and so on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.explain import explain
from pipeline.stages import service

if TYPE_CHECKING:
    from pipeline.compile import Unit


class Dump:
    """Writes below `folder`; with None it writes nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._step: dict[int, int] = {}

    def after(self, stage: str, unit: Unit) -> None:
        """Write what `stage` made of `unit`."""
        if self.folder is None:
            return
        if unit.compiled is not None:
            files = dict(unit.compiled.sources)
        elif unit.program is not None:
            files = {f"{stage}-program.txt": unit.program.text()}
            files |= {f"{stage}-kernels.txt": _kernels(unit)}
            if unit.program.plan is not None:
                files[f"{stage}-arena.svg"] = _arena(unit)
        else:
            files = {f"{stage}-graph.txt": unit.graph.text()}
        if unit.executable is not None:
            files = {"explain.txt": explain([unit])}
        self._write(stage, unit.number, files)

    def _write(self, stage: str, number: int, files: dict[str, str]) -> None:
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        step = self._step.get(number, 0)
        self._step[number] = step + 1
        graph = f"graph{number}-" if number else ""
        for name, text in files.items():
            stem = name if name.startswith(stage) or name == "explain.txt" else f"{stage}-{name}"
            (self.folder / f"{graph}{step:02d}-{stem}").write_text(text, encoding="utf-8")


def _kernels(unit: Unit) -> str:
    """Each different kernel once, with its schedule and how often it is launched."""
    assert unit.program is not None
    from stages.ir.text import kernel_text

    launches = unit.program.launches
    times: dict[str, int] = {}
    for launch in launches:
        times[launch.kernel.hash] = times.get(launch.kernel.hash, 0) + 1
    parts = []
    for launch in {launch.kernel.hash: launch for launch in launches}.values():
        schedule = launch.schedule.text() if launch.schedule else "default schedule"
        parts.append(f"# {launch.kernel.hash}, launched {times[launch.kernel.hash]} times, {schedule}")
        parts.append(kernel_text(launch.kernel))
    return "\n".join(parts)


def _arena(unit: Unit) -> str:
    assert unit.program is not None and unit.program.plan is not None
    return str(service("arena_picture")(unit.program.plan))

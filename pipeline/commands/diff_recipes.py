"""What differs between two recipes: config, versions, device, weights, kernels and results.

python -m pipeline.commands.diff_recipes bert_fp32_cpu outputs/2026-11-30/11-20-00-bert-fp32          # a name, a run
python -m pipeline.commands.diff_recipes a/recipe.yaml b/recipe.yaml --only config,versions,kernels   # not the figures
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from pipeline.progress import plain_console
from pipeline.recipe import PARTS, Difference, compare, find, read
from stages.ir.errors import UserError, choose
from stages.ir.words import counted

EQUAL, DIFFERENT, TROUBLE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code as diff has it: 0 where they are equal, 1 where not, 2 where one is no recipe."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.commands.diff_recipes", description=__doc__.splitlines()[0]
    )
    for name in ("one", "other"):
        parser.add_argument(name, help="the name of a recipe, the path of one, or a run folder")
    parser.add_argument("--only", default=",".join(PARTS), help=f"what to look at (default: {','.join(PARTS)})")
    options = parser.parse_args(arguments)
    try:
        parts = [choose("--only", part, PARTS) for part in options.only.split(",")]
        found = compare(read(find(options.one)), read(find(options.other)), parts)  # type: ignore[arg-type]
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return TROUBLE
    console = plain_console()
    if found:
        console.print(table_of(found, options.one, options.other))
    counts = [counted(sum(each.part == part for each in found), "difference") + f" in {part}" for part in parts]
    console.print("; ".join(counts) if found else f"equal in {', '.join(parts)}", markup=False, soft_wrap=True)
    return DIFFERENT if found else EQUAL


def table_of(found: Sequence[Difference], one: str, other: str) -> Table:
    """A row a difference."""
    table = Table(box=box.MARKDOWN)
    for heading in ("", "what", one, other):
        table.add_column(escape(heading), overflow="fold")
    part = ""
    for each in found:
        table.add_row(each.part if each.part != part else "", *map(escape, (each.name, each.one, each.other)))
        part = each.part
    return table


if __name__ == "__main__":
    sys.exit(main())

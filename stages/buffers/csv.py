"""Requests and plans in the CSV form of MiniMalloc (https://github.com/google/minimalloc), to compare planners.

    id,lower,upper,size[,offset]
    b1,0,3,4,8

A buffer is alive at the times `lower` <= t < `upper`; `size` and `offset` are bytes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from stages.buffers.planners import Plan, Request
from stages.ir.errors import UserError

COLUMNS = ("id", "lower", "upper", "size")


def read_csv(text: str) -> tuple[list[Request], Plan]:
    """The requests of `text` (their ids are strings) and the offsets that it gives, if any.

    Raises `UserError` naming the line for a missing column, a number that is none, an empty life, or an id seen before.
    """
    rows = csv.DictReader(io.StringIO(text))
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise UserError(
            f"buffer CSV, line 1: no column '{missing[0]}'", f"The columns are {', '.join(COLUMNS)}[,offset]."
        )
    requests: list[Request] = []
    plan: Plan = {}
    seen: set[str] = set()
    for row in rows:
        where = f"buffer CSV, line {rows.line_num}"
        try:
            lower, upper, size = int(row["lower"]), int(row["upper"]), int(row["size"])
            if row.get("offset"):
                plan[row["id"]] = int(row["offset"])
        except (TypeError, ValueError) as error:
            raise UserError(f"{where}: lower, upper, size and offset must be whole numbers") from error
        if lower >= upper or size < 0:
            raise UserError(f"{where}: '{row['id']}' must have lower < upper and size >= 0")
        if row["id"] in seen:
            raise UserError(f"{where}: a second buffer '{row['id']}'")
        seen.add(row["id"])
        requests.append(Request(row["id"], lower, upper - 1, size))
    return requests, plan


def write_csv(requests: Sequence[Request], plan: Plan | None = None) -> str:
    """`requests`, with the offsets of `plan` if there is one, as CSV."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS if plan is None else (*COLUMNS, "offset"))
    for request in requests:
        row = (request.id, request.first, request.last + 1, request.bytes)
        writer.writerow(row if plan is None else (*row, plan[request.id]))
    return file.getvalue()

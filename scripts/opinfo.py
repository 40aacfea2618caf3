"""Hold torchweld against eager on PyTorch's own sample inputs of every operator.

python -m scripts.opinfo                                        # everything, on the CPU
python -m scripts.opinfo --ops "nn\\.functional\\..*" --dtypes float32,bfloat16 --samples 8
python -m scripts.opinfo --quick --jobs 2                       # a minute
python -m scripts.opinfo --resume                               # what is not in --results yet
python -m scripts.opinfo --failed                               # what failed in --results, again

Writes a line of JSON for each operator and dtype, and prints a table and what differs. Exit code 1 if anything does.
Needs the packages of the extra `test`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.operators.cases import DTYPES, chosen
from scripts.operators.pool import run_all
from scripts.operators.table import Exceptions, failed, failures, read_exceptions, summary
from scripts.operators.task import Task

QUICK_OPERATORS = (
    "add|sub|mul|div.floor_rounding|remainder|pow|exp|clamp|where|maximum|sum|mean|amax|argmax|cumsum|sort|cat|"
    "index_select|gather|softmax|nn.functional.(gelu|layer_norm|linear|conv2d|pad.reflect|interpolate.bilinear)|"
    "bitwise_xor|var|matmul|permute|flip|masked_fill|linalg.vector_norm|unique|empty_like|bernoulli"
)
QUICK_DTYPES = "float32,bfloat16,int64,bool"
QUICK_SAMPLES = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where everything agrees, 1 where something differs, 2 where nothing was asked for."""
    options = _parser().parse_args(arguments)
    exceptions = read_exceptions()
    before = _read(options.results) if options.resume or options.failed else {}
    tasks = _tasks(options, exceptions, before)
    if not tasks and not before:
        print("no operator of torch's list fits --ops and --dtypes", file=sys.stderr)
        return 2
    if options.interpreter:
        os.environ["TRITON_INTERPRET"] = "1"  # read by the processes that import Triton
    options.results.parent.mkdir(parents=True, exist_ok=True)
    records = dict(before)
    start = time.monotonic()
    records_of = run_all(tasks, options.jobs, options.timeout_seconds, options.together, options.interpreter)
    with options.results.open("a" if before else "w") as file:
        for done, record in enumerate(records_of, 1):
            file.write(json.dumps(record) + "\n")
            file.flush()
            records[record["op"], record["dtype"]] = record
            if failed(record, exceptions):
                print(failures([record], exceptions).splitlines()[-1], flush=True)
            if done % 100 == 0:
                print(f"{done} of {len(tasks)} after {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    listed = list(records.values())
    print(f"\n{summary(listed, exceptions)}\n\n{failures(listed, exceptions)}".rstrip())
    return int(any(failed(record, exceptions) for record in listed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.opinfo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", default=".*", help="a regular expression that names of operators match whole")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="default: all of %(default)s")
    parser.add_argument("--samples", type=int, help="of each operator and dtype, spread over its list (default: all)")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th task, from number i on")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("--together", type=int, default=8, help="operators to try in one graph first (default: 8)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--interpreter", action="store_true", help="kernels in Triton, through its interpreter")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SAMPLES} samples of some operators")
    parser.add_argument("--resume", action="store_true", help="leave out what --results has")
    parser.add_argument("--failed", action="store_true", help="only what failed in --results")
    parser.add_argument("--results", type=Path, default=Path("outputs/opinfo.jsonl"), help="default: %(default)s")
    parser.add_argument(
        "--timeout-seconds", type=float, default=600.0, help="of one step: some samples, in eager or compiled"
    )
    parser.add_argument("overrides", nargs="*", help="of the config, such as fusion=none")
    return parser


def _read(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    records = map(json.loads, lines)
    return {(record["op"], record["dtype"]): record for record in records}


def _tasks(options: argparse.Namespace, exceptions: Exceptions, before: dict[tuple[str, str], Any]) -> list[Task]:
    pattern, dtypes, samples = options.ops, options.dtypes, options.samples
    if options.quick:
        pattern, dtypes, samples = QUICK_OPERATORS, QUICK_DTYPES, QUICK_SAMPLES
    pairs = chosen(pattern, dtypes.split(","), options.device)
    if options.failed:
        pairs = [pair for pair in pairs if pair in before and failed(before[pair], exceptions)]
    elif options.resume:
        pairs = [pair for pair in pairs if pair not in before]
    first, step = map(int, options.shard.split("/"))
    return [
        Task(
            name,
            dtype,
            options.device,
            samples,
            name in exceptions.uninitialised,
            tuple(options.overrides),
            exceptions.unwritten.get(name, ((), ""))[0],
        )
        for name, dtype in pairs[first::step]
    ]


if __name__ == "__main__":
    sys.exit(main())

"""Random graphs through torchweld, against eager and eager in float64.

python -m scripts.fuzz --seed 1 --minutes 60                  # until the hour is over
python -m scripts.fuzz --seed 1 --graphs 100000 --jobs 16     # so many graphs
python -m scripts.fuzz --quick                                # 100 small graphs, in less than a minute
python -m scripts.fuzz --seed 1 --graphs 40 --first 7120      # from that case on
python outputs/fuzz/1/7123.py                                 # a finding, shrunk to a few lines
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where every graph is right, 1 where one is not."""
    options = _options(arguments)
    # Read when Triton and OpenMP are first imported, which the imports below do.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if options.triton_interpreter:
        os.environ["TRITON_INTERPRET"] = "1"
    # The parent forks, so it may ask whether there is a GPU, but not open one.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    from scripts.fuzzing.campaign import Plan, run

    plan = Plan(
        seed=options.seed,
        graphs=100 if options.quick else options.graphs,
        minutes=options.minutes,
        jobs=options.jobs,
        first=options.first,
        shares=_shares(options),
        steps=6 if options.quick else 12,
        device=options.device,
        ignored=frozenset(options.ignore),
        shrink_seconds=10.0 if options.quick else 60.0,
    )
    folder = options.outputs / "fuzz" / str(options.seed)
    summary = run(plan, folder, lambda line: print(line, file=sys.stderr, flush=True))
    print(summary.text())
    if summary.findings:
        print(f"the programs are in {folder}")
    return int(bool(summary.findings))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    from scripts.fuzzing.kinds import KINDS

    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the graphs (default: 0)")
    parser.add_argument("--minutes", type=float, help="no graph is begun after so many (default: no limit)")
    parser.add_argument("--graphs", type=int, help="how many (default: 1000, with --minutes no limit)")
    parser.add_argument("--first", type=int, default=0, help="number of the first graph (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes (default: 1)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("--quick", action="store_true", help="100 small graphs, half of them interpreted")
    parser.add_argument("--triton-interpreter", action="store_true", help="kernels printed for Triton, interpreted")
    parser.add_argument("--interpreted", type=float, default=0.0, help="share whose kernels are only interpreted")
    parser.add_argument("--dynamo", type=float, default=0.02, help="share through torch.compile (default: 0.02)")
    parser.add_argument("--ignore", action="append", default=[], choices=sorted(KINDS), help="kinds of no interest")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="where findings go (default: outputs)")
    options = parser.parse_args(arguments)
    if options.graphs is None and options.minutes is None:
        options.graphs = 1000
    if options.triton_interpreter and options.device == "cuda":
        parser.error("--triton-interpreter runs on the CPU: leave --device out")
    return options


def _shares(options: argparse.Namespace) -> tuple[tuple[str, float], ...]:
    """Engine -> share of the graphs."""
    if options.triton_interpreter:
        return (("triton", 1.0),)
    if options.quick:
        return (("aot", 0.5), ("interpreted", 0.5))
    whole = max(0.0, 1.0 - options.interpreted - options.dynamo)
    return (("aot", whole), ("interpreted", options.interpreted), ("dynamo", options.dynamo))


if __name__ == "__main__":
    # Stopped from outside, it still ends its workers and writes the summary.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())

"""For your CI: is this model slower than it was when a recipe was made?

python -m pipeline.commands.check_regression --baseline recipe.yaml --tolerance 5%          # runs it again, here
python -m pipeline.commands.check_regression --baseline recipe.yaml --run outputs/DATE/RUN  # judges a run there is
python -m pipeline.commands.check_regression --baseline recipe.yaml trust=[mine] benchmark=thorough     # overrides

On the baseline's own device latencies are compared, on another the speed-ups over eager (or what engine.baseline says)
that were measured in the same run as the model; --by says which. Only a slowdown whose whole interval lies beyond the
tolerance counts.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.recipe import FILE, Recipe, Results, find, read
from pipeline.report.regression import By, judge
from stages.ir.errors import UserError

RIGHT, REGRESSED, TROUBLE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where nothing is clearly slower, 1 for a slowdown or a wrong result, 2 for something to mend."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.commands.check_regression", description=__doc__.splitlines()[0]
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="set on top of the recipe for the new run")
    parser.add_argument("--baseline", required=True, metavar="RECIPE", help="a name, a path, or a run folder")
    parser.add_argument("--tolerance", type=tolerance, default=0.05, help="as 5%% or 0.05, the default")
    parser.add_argument(
        "--run", metavar="RUN", help="the folder (or recipe) of a finished run, in the place of a new one"
    )
    parser.add_argument("--by", choices=("auto", "latency", "speedup"), default="auto", help="what is compared")
    options = parser.parse_intermixed_args(arguments)
    try:
        if options.run and options.overrides:
            raise UserError(f"{options.overrides[0]} cannot be set on a finished run", "leave out --run, or it")
        baseline = read(find(options.baseline))
        if options.run:
            return check(baseline, read(find(options.run)), options.tolerance, options.by)
        with tempfile.TemporaryDirectory() as folder:
            code = run_again(options.baseline, options.overrides, Path(folder))
            if code:
                print("the recipe's model did not run to a right result", file=sys.stderr)
                return code
            return check(baseline, read(Path(folder) / FILE), options.tolerance, options.by)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return TROUBLE


def tolerance(text: str) -> float:
    """0.05 of `5%` or `0.05`. Raises `ValueError`, as argparse wants it."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)", text.strip())
    if match is None:
        raise ValueError(text)
    return float(match[1]) / (100.0 if match[2] else 1.0)


def run_again(recipe: str, overrides: Sequence[str], folder: Path) -> int:
    """Run `recipe` into `folder`, in a process of its own; its exit code. It is logged only if `overrides` say so."""
    from pipeline.main import quoted

    own = [f"recipe={quoted(find(recipe).absolute())}", f"hydra.run.dir={quoted(folder)}", "tracking=off"]
    named = {text.partition("=")[0] for text in overrides}
    own = [text for text in own if text.partition("=")[0] not in named]
    return subprocess.run([sys.executable, "-m", "pipeline.main", *own, *overrides], check=False).returncode


def check(baseline: Recipe, run: Recipe, tolerated: float, by: str) -> int:
    """Tell how `run` stands against `baseline`; the exit code. Raises `UserError` where they cannot be compared."""
    if baseline.config.get("model") != run.config.get("model"):
        print("note: the run is of another model, or of other sizes, than the baseline")
    if _wrong(baseline.results) or baseline.results is None:
        raise UserError("the baseline has no right result", "make another one")
    if run.results is None or _wrong(run.results):
        reasons = run.results.validation.reasons if run.results and run.results.validation else ()
        print(f"the result is wrong: {next(iter(reasons), 'validation failed')}")
        return REGRESSED
    chosen: By = "latency" if by == "latency" or (by == "auto" and baseline.device == run.device) else "speedup"
    if baseline.device != run.device:
        print(f"note: the baseline is of {baseline.device}; this is {run.device}")
        if by == "auto":
            print("note: so the speed-ups are compared, each measured in its own run; --by latency compares times")
    for whose, results in (("the baseline", baseline.results), ("the run", run.results)):
        if results.load:
            print(f"note: {whose} was timed under load: {results.load}")
    verdict = judge(baseline.results, run.results, chosen, tolerated)
    print(verdict.text())
    if verdict.unclear:
        print("note: the interval reaches beyond the tolerance; benchmark=thorough makes it narrower")
    return REGRESSED if verdict.regressed else RIGHT


def _wrong(results: Results | None) -> bool:
    return results is not None and results.status == "failed"


if __name__ == "__main__":
    sys.exit(main())

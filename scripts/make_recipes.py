"""Make the recipes that come with the program, `conf/recipe/NAME.yaml`, on the machine that they are to be tuned for.

python -m scripts.make_recipes --device cpu                       # all for this CPU, on a quiet machine
python -m scripts.make_recipes --device h200 bert_amp_h200        # one of them, on an H200
python -m scripts.make_recipes --device cpu bert_fp32_cpu --with autotune=quick engine=eager     # a quick one
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline import recipe as recipes
from stages.ir.errors import UserError

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "conf" / "recipe"

# What is tuned where: model and precision. Weights are random, so that they are the same wherever the recipe is used.
DEVICES = {"cpu": ["device=cpu"], "h200": ["device=cuda"]}
RECIPES = {
    "cpu": {name: ["model=" + name, "precision=fp32"] for name in ("bert", "resnet50", "vit", "gpt2")},
    "h200": {name: ["model=" + name, "precision=amp"] for name in ("bert", "resnet50", "vit", "gpt2")},
}
ALWAYS = ["model.weights=random", "autotune=thorough", "engine=best", "benchmark=thorough", "tracking=off"]


def table(device: str) -> dict[str, list[str]]:
    """The overrides of each recipe for `device`, by name: `<model>_<precision>_<device>`."""
    return {
        f"{model}_{overrides[1].partition('=')[2]}_{device}": [*overrides, *DEVICES[device], *ALWAYS]
        for model, overrides in RECIPES[device].items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where all were made, 1 where one was not, 2 for a name that is none."""
    parser = argparse.ArgumentParser(prog="python -m scripts.make_recipes", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="all of the device by default")
    parser.add_argument("--device", choices=sorted(DEVICES), required=True, help="that this machine has")
    parser.add_argument("--with", nargs="+", default=[], dest="more", metavar="OVERRIDE", help="further overrides")
    parser.add_argument("--loaded", action="store_true", help="keep one that was timed beside other busy processes")
    parser.add_argument("--runs", type=Path, default=ROOT / "outputs" / "recipes", help="where the runs go")
    options = parser.parse_args(arguments)
    known = table(options.device)
    unknown = [name for name in options.names if name not in known]
    if unknown:
        print(f"error: there is no {unknown[0]}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    made = [
        make(name, [*known[name], *options.more], options.runs / name, options.loaded)
        for name in options.names or known
    ]
    return int(not all(made))


def make(name: str, overrides: Sequence[str], folder: Path, loaded: bool) -> bool:
    """Run, and put the run's recipe where it is found by name; whether that was done."""
    command = [sys.executable, str(ROOT / "run.py"), *overrides, f"hydra.run.dir={folder}"]
    print(f"{name}: {' '.join(overrides)}", flush=True)
    if subprocess.run(command, check=False).returncode:
        print(f"{name}: the run is not right, so nothing was made of it", file=sys.stderr)
        return False
    try:
        recipe = recipes.read(folder / recipes.FILE)
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return False
    if recipe.results is None or (recipe.results.load and not loaded):
        load = recipe.results.load if recipe.results is not None else "nothing was timed"
        print(f"{name}: not made, since its figures are worth little: {load} (--loaded takes it)", file=sys.stderr)
        return False
    FOLDER.mkdir(exist_ok=True)
    head = (
        f"{name}, tuned for {recipe.device}.  torchweld recipe={name}",
        "On another machine what differs is told, and the schedules are taken as they are; on another type of device",
        "they are left, and kernels are scheduled as configured.  Made by python -m scripts.make_recipes",
    )
    recipes.write(FOLDER / f"{name}.yaml", recipe, head)
    return True


if __name__ == "__main__":
    sys.exit(main())

"""The command line: `torchweld` and `run.py`. Everything the user wrote is checked before anything is written.

Comes in: `sys.argv`. Goes out: an exit code.
    0     done, and right         1   the compiled model is wrong, or a fault of ours
    2     something to mend       130 Ctrl-C
Hydra parses, composes and runs; its own errors are said in our words, by composing once before it does. A sweep is
expanded by Hydra and run by `pipeline.sweep`; where the command line names a launcher of Hydra's, by that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig

from pipeline.models import hydra_source
from stages.ir.errors import ConfigError, UserError

if TYPE_CHECKING:
    from pipeline.config import Config

USER_ERROR = 2


def main() -> int:
    """Run as `sys.argv` says; returns the exit code."""
    try:
        return _run(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("interrupted before anything was written", file=sys.stderr)
        return 130


def _run(arguments: Sequence[str]) -> int:
    options = get_args_parser().parse_args(list(arguments))
    hydra_source.register()
    asks_hydra = options.help or options.hydra_help or options.info or options.shell_completion
    if options.multirun and not (asks_hydra or options.cfg):
        from pipeline.sweep.command import sweep, sweep_through_hydra

        if any(text.lstrip("+").startswith("hydra/sweeper=") for text in options.overrides):
            raise ConfigError("hydra/sweeper", "sweeps are expanded by Hydra's own sweeper alone", "leave it out")
        by_hydra = any(text.lstrip("+").startswith("hydra/launcher=") for text in options.overrides)
        run = sweep_through_hydra if by_hydra else sweep
        return run(list(options.overrides), options.config_dir, list(arguments))
    extra: list[str] = []
    folder: Path | None = None
    if not asks_hydra:
        config = _check(options.overrides, options.config_dir)
        named = any(text.startswith("hydra.run.dir=") for text in options.overrides)
        if not (options.cfg or named):
            folder = claim(config, config.job)
            extra = [f"hydra.run.dir={quoted(folder)}"]
    codes: list[int] = []

    @hydra.main(config_path="pkg://conf", config_name="config", version_base="1.3")
    def task(composed: DictConfig) -> None:
        codes.append(_job(composed))

    try:
        stopped = through_hydra(task, [*arguments, *extra])
    finally:
        if folder is not None:  # still empty where the run was stopped before it began
            with suppress(OSError):
                folder.rmdir()
                folder.parent.rmdir()
    return max(codes, default=0) if stopped is None else stopped


def through_hydra(task: Callable[[], None], arguments: Sequence[str]) -> int | None:
    """Call Hydra's `task` as if it were started with `arguments`; the exit code where Hydra, or Ctrl-C, ended it."""
    from pipeline.compose import for_hydra

    overrides = get_args_parser().parse_args(list(arguments)).overrides
    flags = [text for text in arguments if text not in overrides]
    before = sys.argv
    sys.argv = [before[0], *for_hydra(overrides), *flags]
    try:
        task()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.argv = before
    return None


def _check(overrides: Sequence[str], config_dir: str | None) -> Config:
    """The config of a run, of which everything that can be checked before it starts is checked."""
    from pipeline.compose import compose
    from pipeline.configure import configuration
    from pipeline.device import device_of
    from pipeline.models.load import check_importable

    for text in overrides:
        key = text.partition("=")[0].lstrip("+")
        if key.split(".")[0] in ("sweep", "search"):
            raise ConfigError(key, "is for the jobs of a sweep, and this is a single run", "add -m for a sweep")
    config, _ = configuration(compose(overrides, config_dir), overrides)
    device_of(config.device)
    check_importable(config.model)
    return config


def claim(config: Config, name: str) -> Path:
    """Make the folder `outputs/<date>/<time>-<name>`, under a name that no other run has."""
    now = datetime.now()
    base = Path(config.outputs).absolute() / f"{now:%Y-%m-%d}"
    try:
        base.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            folder = base / f"{now:%H-%M-%S}-{name}{f'-{number}' if number > 1 else ''}"
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise UserError(
            f"outputs={config.outputs}: a run folder cannot be made there: {error.strerror}",
            "outputs=FOLDER names another",
        ) from error
    raise UserError(f"{base} has a thousand runs of this second", "wait for the next one")


def quoted(path: Path) -> str:
    """`path` as a quoted string of Hydra's grammar."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("${", "\\${")
    return f'"{text}"'


def _job(composed: DictConfig) -> int:
    """The run, inside Hydra: its exit code."""
    from hydra.core.hydra_config import HydraConfig

    from pipeline.configure import configuration
    from pipeline.job import run

    about = HydraConfig.get()
    try:
        overrides = [text for text in about.overrides.task]
        config, recipe = configuration(composed, overrides)
        code = run(config, recipe, Path(about.runtime.output_dir))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    return code


if __name__ == "__main__":
    sys.exit(main())

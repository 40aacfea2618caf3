"""The command line: `torchweld` and `run.py`. Everything the user wrote is checked before anything is written.

Comes in: `sys.argv`. Goes out: an exit code.
    0     done, and right         1   the compiled model is wrong, or a fault of ours
    2     something to mend       130 Ctrl-C
Hydra parses, composes and runs; its own errors are said in our words, by composing once before it does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig

from pipeline.models import hydra_source
from stages.ir.errors import UserError

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
    extra: list[str] = []
    folder: Path | None = None
    if not asks_hydra:
        config = _check(options.overrides, options.multirun, options.config_dir)
        named = any(text.startswith("hydra.run.dir=") for text in options.overrides)
        if config is not None and not (options.cfg or named):
            folder = _claim(config)
            extra = [f"hydra.run.dir={_quoted(folder)}"]
    codes: list[int] = []

    @hydra.main(config_path="pkg://conf", config_name="config", version_base="1.3")
    def task(composed: DictConfig) -> None:
        codes.append(_job(composed))

    before = sys.argv
    sys.argv = [before[0], *arguments, *extra]
    try:
        task()
    except SystemExit as stop:  # Hydra's, and ours after Ctrl-C
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.argv = before
        if folder is not None:  # still empty where the run was stopped before it began
            with suppress(OSError):
                folder.rmdir()
                folder.parent.rmdir()
    return max(codes, default=0)


def _check(overrides: Sequence[str], multirun: bool, config_dir: str | None) -> Config | None:
    """Check every job before the first one starts; the config of the only job, or None for a sweep."""
    from pipeline.compose import compose, jobs_of
    from pipeline.configure import configuration
    from pipeline.device import device_of
    from pipeline.models.load import check_importable

    configs = []
    for job in jobs_of(overrides) if multirun else [list(overrides)]:
        config, _ = configuration(compose(job, config_dir), job)
        device_of(config.device)
        check_importable(config.model)
        configs.append(config)
    return None if multirun else configs[0]


def _claim(config: Config) -> Path:
    """Make the run folder, `outputs/<date>/<time>-<job>`, under a name that no other run has."""
    now = datetime.now()
    base = Path(config.outputs).absolute() / f"{now:%Y-%m-%d}"
    try:
        base.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            folder = base / f"{now:%H-%M-%S}-{config.job}{f'-{number}' if number > 1 else ''}"
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


def _quoted(path: Path) -> str:
    """`path` as a quoted string of Hydra's grammar."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("${", "\\${")
    return f'"{text}"'


def _job(composed: DictConfig) -> int:
    """One job, inside Hydra: its exit code. A user's error ends this job with a message, not the sweep."""
    from hydra.core.hydra_config import HydraConfig

    from pipeline.configure import configuration
    from pipeline.job import INTERRUPTED, run

    about = HydraConfig.get()
    try:
        overrides = [text for text in about.overrides.task]
        config, recipe = configuration(composed, overrides)
        code = run(config, recipe, Path(about.runtime.output_dir))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    if code == INTERRUPTED:
        raise SystemExit(code)  # the whole sweep, not this job alone
    return code


if __name__ == "__main__":
    sys.exit(main())

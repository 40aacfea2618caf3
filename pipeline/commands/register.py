"""Register a run, such as the winner of a sweep, as a version of a model in MLflow, and let an alias name it.

python -m pipeline.commands.register outputs/2026-11-30/11-20-00-sweep/3-bert-amp bert --alias champion
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.registry import register
from pipeline.tracking import default_uri
from pipeline.tracking_store import TrackingError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where the run is registered, 1 where it is not."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.register", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of the run; its result was validated and it is in MLflow")
    parser.add_argument("name", help="of the registered model")
    parser.add_argument("--alias", help="that from now on means this version")
    parser.add_argument("--uri", help="of the MLflow store; default: mlflow.db in --outputs")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="the output folder (default: outputs)")
    parser.add_argument("--timeout-seconds", type=float, default=5.0, help="that a server has to answer (default: 5)")
    options = parser.parse_args(arguments)
    uri = options.uri or default_uri(options.outputs)
    try:
        version = register(options.folder, options.name, options.alias, uri, options.timeout_seconds)
    except TrackingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.name}: version {version}" + (f", now {options.name}@{options.alias}" if options.alias else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())

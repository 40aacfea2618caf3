"""Log runs to MLflow that could not be logged when they ran.

python -m pipeline.commands.sync_tracking outputs/2026-11-30/11-20-00-bert        # one run, to mlflow.db in `outputs`
python -m pipeline.commands.sync_tracking outputs --uri http://localhost:5000     # every run that is not logged yet
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.tracking import PAYLOAD, default_uri, read_payload, send
from pipeline.tracking_store import TrackingError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where every run is logged, 1 where one is not, 2 where there is none."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.commands.sync_tracking", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folders", nargs="+", type=Path, help="run folders, or folders that hold some")
    parser.add_argument("--uri", help="of the MLflow store; default: mlflow.db in --outputs")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="the output folder (default: outputs)")
    parser.add_argument("--timeout-seconds", type=float, default=5.0, help="that a server has to answer (default: 5)")
    parser.add_argument("--again", action="store_true", help="log runs anew that were logged already")
    options = parser.parse_args(arguments)
    found = sorted({path.parent for folder in options.folders for path in folder.rglob(PAYLOAD)})
    if not found:
        print(f"no run in {', '.join(map(str, options.folders))}: a run folder has a file {PAYLOAD}", file=sys.stderr)
        return 2
    uri = options.uri or default_uri(options.outputs)
    failed = False
    for folder in found:
        try:
            payload = read_payload(folder)
            if payload.run_id and not options.again:
                print(f"{folder}: logged before, as run {payload.run_id}")
                continue
            print(f"{folder}: run {send(payload, folder, uri, options.timeout_seconds)}")
        except TrackingError as error:
            failed = True
            print(f"{folder}: {error}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

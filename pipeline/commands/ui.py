"""Show the runs in a browser: MLflow's UI on the default store, reachable from this machine alone.

python -m pipeline.commands.ui                       # mlflow.db in `outputs`, at http://127.0.0.1:5000
python -m pipeline.commands.ui --port 8080
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.tracking import default_uri
from pipeline.tracking_store import absolute

HOST = "127.0.0.1"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C; exit code 2 where there is no store yet."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.commands.ui", description=__doc__.splitlines()[0])
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="the output folder (default: outputs)")
    parser.add_argument("--uri", help="of another store that is a database or a folder")
    parser.add_argument("--port", type=int, default=5000, help="on which the UI listens (default: 5000)")
    options = parser.parse_args(arguments)
    store = options.outputs.absolute() / "mlflow.db"
    if options.uri is None and not store.is_file():
        print(
            f"error: there is no {store}: no run was logged there yet\n  --outputs FOLDER names another",
            file=sys.stderr,
        )
        return 2
    uri = absolute(options.uri) if options.uri else default_uri(options.outputs)
    print(f"http://{HOST}:{options.port} shows {uri}; Ctrl-C ends it", flush=True)
    try:
        return subprocess.call(command(uri, options.port), env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"})
    except KeyboardInterrupt:
        return 0


def command(uri: str, port: int) -> list[str]:
    """What serves the store at `uri` on `port`, to this machine alone."""
    return [
        *(sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri),
        *("--host", HOST, "--port", str(port), "--workers", "1"),
    ]


if __name__ == "__main__":
    sys.exit(main())

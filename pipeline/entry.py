"""Where `run.py` and `torchweld` begin: a Ctrl-C while the libraries are still imported ends as one later does."""

from __future__ import annotations

import sys


def main() -> int:
    """See `pipeline.main.main`."""
    try:
        from pipeline.main import main as run
    except KeyboardInterrupt:
        print("interrupted before anything was written", file=sys.stderr)
        return 130
    return run()

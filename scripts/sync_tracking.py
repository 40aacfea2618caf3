"""python -m scripts.sync_tracking: the same as python -m pipeline.commands.sync_tracking, for a clone."""

import sys

from pipeline.commands.sync_tracking import main

if __name__ == "__main__":
    sys.exit(main())

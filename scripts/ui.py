"""python -m scripts.ui: the same as python -m pipeline.commands.ui, for a clone."""

import sys

from pipeline.commands.ui import main

if __name__ == "__main__":
    sys.exit(main())

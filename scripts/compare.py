"""python -m scripts.compare: the same as python -m pipeline.commands.compare, for a clone."""

import sys

from pipeline.commands.compare import main

if __name__ == "__main__":
    sys.exit(main())

"""python -m scripts.check_regression: the same as python -m pipeline.commands.check_regression, for a clone."""

import sys

from pipeline.commands.check_regression import main

if __name__ == "__main__":
    sys.exit(main())

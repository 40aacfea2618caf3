"""python -m scripts.diff_recipes: the same as python -m pipeline.commands.diff_recipes, for a clone."""

import sys

from pipeline.commands.diff_recipes import main

if __name__ == "__main__":
    sys.exit(main())

"""python -m scripts.register: the same as python -m pipeline.commands.register, for a clone."""

import sys

from pipeline.commands.register import main

if __name__ == "__main__":
    sys.exit(main())

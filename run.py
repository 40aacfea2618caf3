#!/usr/bin/env python3
"""Compile a model, prove it right and time it:  python run.py model=bert precision=amp

Equal to the console script `torchweld`; `python run.py --help` lists all groups and choices.
"""

import sys

from pipeline.entry import main

if __name__ == "__main__":
    sys.exit(main())

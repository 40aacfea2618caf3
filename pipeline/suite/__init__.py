"""Many models of the suite, each in a process of its own, and the table of what became of them.

`scripts/suite.py` is its command line.
"""

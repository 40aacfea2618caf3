"""Operator truth: PyTorch's own sample inputs of every operator, compiled by torchweld and held against eager.

`cases` makes the calls, `judge` compares two results, `task` runs one operator in one type, `pool` runs tasks in
processes of their own, `table` sums up. `scripts/opinfo.py` is the command line.
"""

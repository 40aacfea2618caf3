"""The differential fuzzer: random graphs, compiled, against eager and float64. Its command is `scripts/fuzz.py`.

case.py         a graph as a small data structure; prints as a program of a few lines
draw.py         seeded choices of operands and literals
operations/     what steps there are, as proposals
generate.py     a seed becomes a case
engines.py      a batch of cases is compiled and called
reference.py    eager in float64, and how far rounding can move it
judge.py        differences between a call and eager's
shrink.py       a failing case becomes a small one
campaign.py     cases in forked workers, until the time or the graphs are used up
findings.py     what was found, counted and saved
"""

"""Searches: `-m` with `search=random`, `tpe` or `halving`, where later jobs are chosen by what earlier ones gave.

    config      what a search may be told          goals     what is wanted of a job, and how far it is from that
    space       what the command line lets vary    ranking   the Pareto front, and the winner
    trials      what all searches share            sampling, tpe, halving   what chooses the next trials
    build       from the command line to a search  conclusion   what a search came to, in words, files and figures

Each is a source of jobs for `pipeline.sweep.run`, as a grid is.
"""

"""Sweeps: every job of `-m` in a process of its own, with limits, resumed where it was stopped, told in one table.

    config     what a sweep may be told                     identity   when two jobs are the same job
    job        what is done inside a forked process         record     what is known of a job, and where it is kept
    source     where the jobs come from                     planning   which of them have a result already
    run        the sweep itself                             table      what is printed and written of it
    launched   a sweep whose jobs Hydra's launchers run     worker     what such a launcher calls for each job
    launchers  what each launcher is told                   alone      one job by itself, for a worker
    places     GPUs that jobs take turns at

Processes are those of `pipeline.pool`. `run_sweep` and `run_launched` are the ways in.
"""

"""Tasks in processes of their own, forked from one that has imported what they need: a crash or a hang loses one task.

    client     `Pool`: start tasks, hear what becomes of them       task        what client and server say to each other
    server     the warmed process that tasks are forked from        processes   what Linux tells of processes

Sweeps, the suite of models, the operators' and the fuzzer's campaigns run on it.
"""

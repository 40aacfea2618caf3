"""What the stages hand each other: Graph, Kernel, Schedule, Program; their text forms and verifiers."""

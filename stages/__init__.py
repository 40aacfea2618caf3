"""The rooms of the compiler: one package per stage, each with one `run`; they share only `stages.ir`."""

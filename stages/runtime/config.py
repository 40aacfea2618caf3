"""The keys of `conf/runtime/*.yaml`."""

from __future__ import annotations

from dataclasses import dataclass

from stages.ir.errors import choose, require


@dataclass(frozen=True)
class RuntimeConfig:
    """How a program is run.

    cuda_graph      on CUDA, capture all steps in one CUDA graph and replay it; a CPU has none. Where inputs are copied
                    and that takes longer than launching the steps, there is no graph
    inputs          of a CUDA graph. copy: each call's inputs are copied into memory of the graph. static: the graph
                    reads the caller's memory; a call with other addresses captures it anew, `recaptures` times at
                    most, and from then on inputs are copied
    recaptures      see `inputs`
    outputs         copy: each call's outputs are the caller's own. static: every call returns the same memory, which
                    holds its values until the next call
    cudnn_benchmark on CUDA, time cuDNN's algorithms for each convolution at the first call, and keep the fastest; else
                    cuDNN guesses. Another run may then take another algorithm, which rounds otherwise
    check_weights   always: each call looks whether a weight was changed in place or replaced, and brings the constants
                    made of weights up to date. never: they stay what they were at compile time
    """

    cuda_graph: bool = True
    inputs: str = "copy"
    outputs: str = "copy"
    recaptures: int = 4
    cudnn_benchmark: bool = True
    check_weights: str = "always"

    def __post_init__(self) -> None:
        choose("runtime.inputs", self.inputs, ("copy", "static"))
        choose("runtime.outputs", self.outputs, ("copy", "static"))
        choose("runtime.check_weights", self.check_weights, ("always", "never"))
        require(self.recaptures >= 0, "runtime.recaptures", f"must be at least 0, not {self.recaptures}")

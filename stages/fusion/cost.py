"""What fusion is judged by: bytes of device memory that a step reads and writes at the least, and arithmetic computed.

Each input counts once and each output once, with the elements that are reached; nothing is said about caches. For
kernels that is `ir.kernel.traffic`; for externs the same count over their tensor arguments and results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from stages.ir.expr import Load, Op, Select, walk
from stages.ir.kernel import Kernel, traffic
from stages.ir.program import BufferSpec, Launch, Program, Step, TensorRef

# What a transcendental costs in multiplications, about: a polynomial of degree 5 to 7 with its range reduction.
TRANSCENDENTAL = 8
_TRANSCENDENTAL_NAMES = (
    "pow atan2 hypot exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf erfc"
)
_TRANSCENDENTALS = frozenset(_TRANSCENDENTAL_NAMES.split())


def work(kernel: Kernel) -> int:
    """Scalar operations at one position of `kernel`, index arithmetic left out; a reduction counts its whole row."""
    in_index: set[int] = set()
    for node in kernel.nodes:
        if isinstance(node, Load):
            in_index.update(id(inner) for inner in walk(node.index) if not isinstance(inner, Load))
    total = sum(
        TRANSCENDENTAL if isinstance(node, Op) and node.name in _TRANSCENDENTALS else 1
        for store in kernel.stores
        for node in walk(store.value)
        if isinstance(node, (Op, Select)) and id(node) not in in_index
    )
    return (total + 1) * kernel.row_size if kernel.reduces else total


def step_traffic(step: Step, buffers: Mapping[str, BufferSpec]) -> int:
    """Bytes that `step` moves, read and written."""
    if isinstance(step, Launch):
        return sum(traffic(step.kernel))
    return _touched(step.refs, buffers) + _touched((ref for ref in step.outputs if ref is not None), buffers)


def program_traffic(program: Program) -> int:
    """Bytes that one call of `program` moves between device memory and the chip, at the least."""
    return sum(step_traffic(step, program.buffers) for step in program.steps)


def _touched(refs: Iterable[TensorRef], buffers: Mapping[str, BufferSpec]) -> int:
    """Bytes that distinct `refs` reach, no more than the whole of each buffer."""
    reached: dict[str, int] = {}
    for ref in dict.fromkeys(refs):
        spec = buffers[ref.buffer]
        stepped = ref.shape if ref.opaque else [size for size, step in zip(ref.shape, ref.strides) if step != 0]
        itemsize = (ref.dtype or spec.dtype).itemsize
        reached[ref.buffer] = min(spec.nbytes, reached.get(ref.buffer, 0) + prod(stepped) * itemsize)
    return sum(reached.values())

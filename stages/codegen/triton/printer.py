"""The Triton printer: (Kernel, Schedule) -> the source of a module that Triton compiles.

Goes out, for example:

    GRID = (128, 1, 1)
    SIGNATURE = {"in0": "*fp32", "out0": "*fp32"}
    ...
    @triton.jit
    def softmax(in0, out0):
        row = tl.program_id(0)
        ...

All sizes are literals, so a launch passes addresses alone. A kernel that checks indices takes one more address,
`error`, an int32 that it sets to 1 where an index was out of range; after it come those of `SCRATCH`, memory that a
launch leaves as it found it. Matrix products are written by `matmul`. The same source runs on a device and under
Triton's interpreter (see `libm`). Multiplications and additions are not contracted to fused multiply-adds (`OPTIONS`):
a fused kernel then rounds as the chain of eager kernels does, `x * x - y * y` is 0 where x is y, and these kernels wait
for memory, not for arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stages.codegen.triton import ops
from stages.codegen.triton.body import INDENT, Body
from stages.codegen.triton.indices import needs_int64
from stages.codegen.triton.matmul import WAIT, Printed, print_matmul
from stages.codegen.triton.tiling import tiling_of
from stages.ir.dtype import DType
from stages.ir.expr import Reduce
from stages.ir.kernel import Kernel, Store
from stages.ir.matmul import matmul_of
from stages.ir.schedule import Schedule

LAST_INT = {"tl.int32": (1 << 31) - 1, "tl.int64": (1 << 63) - 1}


def print_kernel(kernel: Kernel, schedule: Schedule) -> str:
    """The source of a complete module: imports, constants about the launch, and the function they call `ENTRY`.

    Raises `IRError` for a schedule that `kernel` cannot have, or an atomic addition that Triton has not.
    """
    wide = needs_int64(kernel)
    if schedule.tile_m and (product := matmul_of(kernel)) is not None:
        return _module(kernel, schedule, print_matmul(kernel, product, schedule, wide))
    tiling = tiling_of(kernel, schedule, wide)
    body = Body(kernel, tiling, wide)
    body.lines.extend(tiling.lines)
    if not kernel.inner:
        _write_stores(body, kernel.stores)
    elif schedule.persistent:
        _persistent(body)
    else:
        _looped(body, schedule)
    wait = WAIT if schedule.launch_pdl else ()
    return _module(kernel, schedule, Printed([*wait, *body.lines], tiling.programs))


def _module(kernel: Kernel, schedule: Schedule, printed: Printed) -> str:
    name = "kernel_" + re.sub(r"\W", "_", kernel.name)
    signature = {buffer.name: ops.SIGNATURE[buffer.dtype] for buffer in kernel.buffers}
    if kernel.checks_index:
        signature["error"] = "*i32"
    signature |= {name: ops.SIGNATURE[DType(dtype)] for name, (dtype, _) in printed.scratch.items()}
    options = {"num_warps": schedule.num_warps, "enable_fp_fusion": False, "enable_reflect_ftz": False}
    if schedule.launch_pdl:
        options["launch_pdl"] = True
    head = [
        f'"""{kernel.name}, kernel {kernel.hash}, under {schedule.text()}."""',
        "",
        "import triton",
        "import triton.language as tl",
        "",
        "from stages.codegen.triton import device, functions, libm",
        "",
        f'ENTRY = "{name}"',
        f"GRID = ({printed.programs}, 1, 1)",
        f"SIGNATURE = {_table(signature)}",
        f"SCRATCH = {_table(printed.scratch)}",
        f"OPTIONS = {_table(options)}",
        "",
        "",
        "@triton.jit",
        f"def {name}({', '.join(signature)}):",
    ]
    return "\n".join([*head, *(INDENT + line for line in printed.lines)]) + "\n"


def _table(entries: Mapping[str, str | bool | int | tuple[str, int]]) -> str:
    """A dictionary as source, in double quotes."""
    return repr(dict(entries)).replace("'", '"')


def _write_stores(body: Body, stores: tuple[Store, ...]) -> None:
    """All values first, then all stores: an output may be the memory of an input."""
    values = [body.operands_of_store(store) for store in stores]
    for store, value in zip(stores, values, strict=True):
        body.store(store, value)


# ---- rows -----------------------------------------------------------------------------------


def _persistent(body: Body) -> None:
    """The whole row at once: what is loaded stays in registers from one reduction to the next."""
    tiling, inner = body.tiling, body.tiling.inner
    assert inner is not None
    widen = ".to(tl.int64)" if body.index_type == "tl.int64" else ""
    body.lines.append(f"inner = {tiling.lanes(inner)}{widen}")
    body.lines.extend(tiling.row_lines)
    for reduction in body.kernel.reduces:
        body.result(reduction.body)
        block = _masked(body, reduction)
        body.bind(reduction, _across(body, reduction, *_blocks(body, reduction, block)))
    _write_stores(body, body.kernel.stores)


def _looped(body: Body, schedule: Schedule) -> None:
    """One loop over the row for the reductions that need none before them, one for those that need these, and so on;
    the last one stores. Each loop computes again what it needs."""
    kernel = body.kernel
    for reductions in _levels(kernel):
        accumulators = {id(reduction): _accumulators(body, reduction) for reduction in reductions}
        with body.loop(*_row_loop(body, schedule)):
            for reduction in reductions:
                body.result(reduction.body)
                _accumulate(body, reduction, accumulators[id(reduction)])
        for reduction in reductions:
            body.bind(reduction, _across(body, reduction, *accumulators[id(reduction)]))
    _write_stores(body, tuple(store for store in kernel.stores if not store.inner))
    if any(store.inner for store in kernel.stores):
        with body.loop(*_row_loop(body, schedule)):
            _write_stores(body, tuple(store for store in kernel.stores if store.inner))


def _row_loop(body: Body, schedule: Schedule) -> tuple[str, tuple[str, ...]]:
    """The head of a loop over the row, and the first lines in it."""
    tiling, inner = body.tiling, body.tiling.inner
    assert inner is not None
    widen = ".to(tl.int64)" if body.index_type == "tl.int64" else ""
    row_size, step = body.kernel.row_size, schedule.reduce_tile
    header = f"for start in tl.range(0, {row_size}, {step}, num_stages={schedule.num_stages}):"
    return header, (f"inner = start + {tiling.lanes(inner)}{widen}", *tiling.row_lines)


def _levels(kernel: Kernel) -> list[list[Reduce]]:
    """The reductions, grouped by how many others have to be done before each."""
    depth: dict[int, int] = {}
    levels: list[list[Reduce]] = []
    for node in kernel.nodes:
        depth[id(node)] = max((depth[id(child)] for child in node.children), default=0)
        if isinstance(node, Reduce):
            if depth[id(node)] == len(levels):
                levels.append([])
            levels[depth[id(node)]].append(node)
            depth[id(node)] += 1
    return levels


# ---- one reduction --------------------------------------------------------------------------


def _is_arg(reduction: Reduce) -> bool:
    return reduction.combine in ("argmax", "argmin")


def _lane_type(reduction: Reduce) -> DType:
    """What a block of the body is held in: bool as int32, on which `|` and `&` are reductions everywhere."""
    return DType.INT32 if reduction.body.dtype is DType.BOOL else reduction.body.dtype


def _masked(body: Body, reduction: Reduce) -> str:
    """The body as a block of the whole shape, past the end of the row with the identity of the combine."""
    tiling = body.tiling
    everywhere = frozenset(range(len(tiling.shape)))
    assert tiling.inner is not None
    source, dims = body.value(reduction.body), body.dims[id(reduction.body)]
    if reduction.body.dtype is DType.BOOL:
        source = f"{source}.to(tl.int32)"
    guard = tiling.guards.get(tiling.inner)
    if guard is not None:
        identity = ops.literal(ops.identity(reduction.combine, reduction.body.dtype), _lane_type(reduction))
        source, dims = f"tl.where({guard}, {source}, {identity})", dims | {tiling.inner}
    if dims != everywhere:
        source = f"tl.broadcast_to({source}, {list(tiling.shape)})"
    return source if source.isidentifier() else body.assign(source, everywhere)


def _blocks(body: Body, reduction: Reduce, block: str) -> tuple[str, ...]:
    """The blocks that the combine works on: the values, and for argmax and argmin their positions in the row."""
    if not _is_arg(reduction):
        return (block,)
    everywhere = frozenset(range(len(body.tiling.shape)))
    if len(everywhere) == 1:
        return (block, "inner")
    return (block, body.assign(f"tl.broadcast_to(inner, {list(body.tiling.shape)})", everywhere))


def _accumulators(body: Body, reduction: Reduce) -> tuple[str, ...]:
    """Variables that hold, for each lane, the combine of no elements."""
    shape, outside = list(body.tiling.shape), body.tiling.row_dims
    value = ops.identity(reduction.combine, reduction.body.dtype)
    first = body.assign(ops.literal(value, _lane_type(reduction), shape), outside)
    if not _is_arg(reduction):
        return (first,)
    last = LAST_INT[body.index_type]
    return (first, body.assign(f"tl.full({shape}, {last}, {body.index_type})", outside))


def _accumulate(body: Body, reduction: Reduce, accumulators: tuple[str, ...]) -> None:
    """Combine the block at hand into the accumulators."""
    blocks = _blocks(body, reduction, _masked(body, reduction))
    everywhere = frozenset(range(len(body.tiling.shape)))
    if _is_arg(reduction):
        source = f"functions.{reduction.combine}({', '.join((*accumulators, *blocks))})"
    else:
        source = ops.REDUCTIONS[reduction.combine].lanes.format(*accumulators, *blocks)
    body.statement(f"{', '.join(accumulators)} = {source}", everywhere)


def _across(body: Body, reduction: Reduce, *blocks: str) -> str:
    """The variable that holds the reduction, one value a row."""
    tiling = body.tiling
    operand = blocks[0] if len(blocks) == 1 else f"({', '.join(blocks)})"
    keep = len(tiling.shape) > 1
    source = ops.REDUCTIONS[reduction.combine].across.format(operand, axis=tiling.inner, keep=keep)
    if _is_arg(reduction):
        name = body.assign(source, tiling.row_dims)
        return body.assign(f"{name}[1].to(tl.int64)", tiling.row_dims)
    if reduction.dtype is DType.BOOL:
        source = f"{source} != 0"
    elif reduction.dtype.is_integer:
        # `tl.sum` widens small whole numbers; the sum wraps to the type of the body.
        source = f"{source}.to(tl.{reduction.dtype.value})"
    return body.assign(source, tiling.row_dims)

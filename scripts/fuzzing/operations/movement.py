"""Steps that move elements: views, copies, concatenations, gathers and scatters."""

from __future__ import annotations

from torch import Tensor

from scripts.fuzzing.case import Step
from scripts.fuzzing.draw import Draw, NoOperand
from scripts.fuzzing.operations.registry import proposes


@proposes(8)
def rearranged(draw: Draw) -> Step:
    operand = draw.value()
    tensor = draw[operand]
    if tensor.ndim == 0:
        return Step(draw.among(["{0}.unsqueeze(0)", "{0}.expand(3)", "{0}.reshape(1, 1)"]), (operand,))
    order = list(range(tensor.ndim))
    draw.random.shuffle(order)
    one, two = draw.dim(tensor), draw.dim(tensor)
    codes = [f"{{0}}.permute({tuple(order)})", f"{{0}}.transpose({one}, {two})", f"{{0}}.movedim({one}, {two})"]
    codes += [f"{{0}}.permute({tuple(order)}).contiguous()"]
    if tensor.ndim == 4:
        codes.append("{0}.contiguous(memory_format=torch.channels_last)")
    return Step(draw.among(codes), (operand,))


@proposes(8)
def reshaped(draw: Draw) -> Step:
    operand = draw.value()
    tensor = draw[operand]
    shape = draw.shape_of(tensor.numel())
    codes = [f"{{0}}.reshape({shape})", f"{{0}}.reshape({shape})", "{0}.flatten()", f"{{0}}.contiguous().view({shape})"]
    codes += ["{0}.squeeze()", f"{{0}}.unsqueeze({draw.among([0, -1])})", "{0}.clone()", "{0}.contiguous()"]
    return Step(draw.among(codes), (operand,))


@proposes(10)
def sliced(draw: Draw) -> Step:
    operand = draw.value()
    tensor = draw[operand]
    dim = draw.dim(tensor) % tensor.ndim
    size = tensor.shape[dim]
    colons = ":, " * dim
    start, stop = sorted(draw.random.randint(0, size) for _ in range(2))
    step = draw.among(["", "", "::2", "::3"])
    length = stop - start
    codes = [f"{{0}}[{colons}{start}:{stop}]", f"{{0}}[{colons}{step or '1:'}]", f"{{0}}[{colons}:-1]"]
    codes += [f"{{0}}.narrow({dim}, {start}, {length})", f"{{0}}[{colons}-{max(1, size // 2)}:]"]
    if size:
        codes += [f"{{0}}[{colons}{draw.index(size)}]", f"{{0}}.select({dim}, {draw.index(size)})"]
        codes += [f"torch.chunk({{0}}, 2, {dim})[0]", f"torch.split({{0}}, {max(1, size // 2)}, {dim})[-1]"]
        codes += [f"torch.unbind({{0}}, {dim})[-1]"]
    return Step(draw.among(codes), (operand,))


@proposes(4)
def enlarged(draw: Draw) -> Step:
    operand = draw.value()
    tensor = draw[operand]
    expanded = tuple(draw.among([2, 3]) if size == 1 else size for size in tensor.shape)
    repeats = tuple(draw.among([1, 2]) for _ in range(max(1, tensor.ndim)))
    codes = [f"{{0}}.expand({(2, *expanded)})", f"{{0}}.expand({expanded})", f"{{0}}.repeat({repeats})"]
    if tensor.ndim:
        codes.append(f"torch.repeat_interleave({{0}}, 2, {draw.dim(tensor)})")
    return Step(draw.among(codes), (operand,))


@proposes(4)
def padded(draw: Draw) -> Step:
    operand = draw.value(lambda tensor: tensor.ndim > 0)
    tensor = draw[operand]
    count = draw.random.randint(1, min(2, tensor.ndim))
    widths = tuple(draw.among([0, 1, 2, -1]) for _ in range(2 * count))
    code = f"F.pad({{0}}, {widths}, value={draw.number(tensor.dtype)})"
    if tensor.ndim in (3, 4) and draw.chance(0.3):
        mode = draw.among(["reflect", "replicate", "circular"])
        code = f"F.pad({{0}}, {(1, 1, 1, 0)[: 2 * (tensor.ndim - 2)]}, mode='{mode}')"
    return Step(code, (operand,))


@proposes(4)
def turned(draw: Draw) -> Step:
    operand = draw.value(lambda tensor: tensor.ndim > 0)
    tensor = draw[operand]
    dims = draw.dims(tensor)
    shifts = tuple(draw.random.randint(-3, 3) for _ in dims)
    codes = [f"{{0}}.flip({dims})", f"torch.roll({{0}}, {shifts}, {dims})", f"torch.roll({{0}}, {shifts[0]})"]
    if tensor.ndim >= 2:
        codes += [f"{{0}}.{draw.among(['tril', 'triu'])}({draw.among([-1, 0, 1])})", "torch.rot90({0}, 1, (0, 1))"]
    return Step(draw.among(codes), (operand,))


@proposes(6)
def joined(draw: Draw) -> Step:
    first = draw.value()
    tensor = draw[first]
    same_dtype = draw.chance(0.8)

    def stacks(other: Tensor) -> bool:
        return other.shape == tensor.shape and (other.dtype is tensor.dtype or not same_dtype)

    if draw.chance(0.3) or tensor.ndim == 0:
        count = draw.random.randint(1, 3)
        operands = (first, *(draw.value(stacks) for _ in range(count)))
        listed = ", ".join(f"{{{place}}}" for place in range(len(operands)))
        return Step(f"torch.stack([{listed}], {draw.random.randint(-tensor.ndim - 1, tensor.ndim)})", operands)
    dim = draw.dim(tensor) % tensor.ndim

    def joins(other: Tensor) -> bool:
        shape = list(other.shape)
        if len(shape) != tensor.ndim or (same_dtype and other.dtype is not tensor.dtype):
            return False
        return all(a == b for at, (a, b) in enumerate(zip(shape, tensor.shape)) if at != dim)

    operands = (first, *(draw.value(joins) for _ in range(draw.random.randint(1, 4))))
    listed = ", ".join(f"{{{place}}}" for place in range(len(operands)))
    return Step(f"torch.cat([{listed}], {dim})", operands)


@proposes(6)
def gathered(draw: Draw) -> Step:
    operand = draw.value(lambda tensor: tensor.ndim > 0)
    tensor = draw[operand]
    dim = draw.dim(tensor) % tensor.ndim
    size = tensor.shape[dim]
    few = [draw.random.randint(1, 4)]
    shape = [min(extent, 3) for extent in tensor.shape]
    codes = [f"torch.index_select({{0}}, {dim}, {draw.indices(few, size)})"]
    codes += [f"torch.gather({{0}}, {dim}, {draw.indices(shape, size)})"]
    codes += [f"{{0}}[{':, ' * dim}{draw.indices(few, size, negative=True)}]"]
    codes += [f"torch.take({{0}}, {draw.indices(few, tensor.numel(), negative=True)})"]
    if tensor.ndim == 2:
        codes.append(f"F.embedding({draw.indices((2, *few), tensor.shape[0])}, {{0}})")
        pair = draw.indices(few, tensor.shape[0]), draw.indices(few, tensor.shape[1])
        codes.append(f"{{0}}[{pair[0]}, {pair[1]}]")
    return Step(draw.among(codes), (operand,))


@proposes(3)
def gathered_by_value(draw: Draw) -> Step:
    """Indices that are computed, or come in: brought into range by a remainder, unless the case is a faulty one."""
    index = draw.value(lambda tensor: str(tensor.dtype) in ("torch.int64", "torch.int32") and tensor.ndim <= 2)
    operand = draw.value(lambda tensor: tensor.ndim > 0)
    dim = draw.dim(draw[operand]) % draw[operand].ndim
    size = draw[operand].shape[dim]
    if size == 0 or draw[index].numel() > 64:
        raise NoOperand
    inside = "{1}" if draw.faulty else f"({{1}} % {size})"
    code = f"{{0}}[{':, ' * dim}{inside}]"
    if draw[index].ndim == 1 and draw.chance(0.4):
        code = f"torch.index_select({{0}}, {dim}, {inside})"
    return Step(code, (operand, index))


@proposes(3)
def scattered(draw: Draw) -> Step:
    operand = draw.value(lambda tensor: tensor.ndim > 0)
    tensor = draw[operand]
    dim = draw.dim(tensor) % tensor.ndim
    size, few = tensor.shape[dim], draw.random.randint(1, 3)
    source = draw.value(lambda other: other.dtype is tensor.dtype and other.shape == tensor.shape)
    shape = [min(extent, 2) for extent in tensor.shape]
    number = draw.number(tensor.dtype)
    codes = [f"torch.scatter({{0}}, {dim}, {draw.indices(shape, size)}, {number})"]
    codes += [f"torch.scatter_add({{0}}, {dim}, {draw.indices(shape, size)}, {{1}})"]
    codes += [f"torch.index_add({{0}}, {dim}, {draw.indices([few], size)}, {{1}}.narrow({dim}, 0, {min(few, size)}))"]
    codes += [f"torch.index_fill({{0}}, {dim}, {draw.indices([few], size)}, {number})"]
    part = f"{{1}}.narrow({dim}, 0, {min(few, size)})"
    codes += [f"torch.index_copy({{0}}, {dim}, {draw.indices([min(few, size)], size, distinct=True)}, {part})"]
    codes += [f"torch.slice_scatter({{0}}, {{1}}.narrow({dim}, 0, {size // 2}), {dim}, 0, {size // 2})"]
    code = draw.among(codes)
    return Step(code, (operand, source), rounds="_add" in code)


@proposes(4)
def windowed(draw: Draw) -> Step:
    operand = draw.value(lambda tensor: tensor.ndim > 0 and tensor.numel() > 1)
    tensor = draw[operand]
    dim = draw.dim(tensor) % tensor.ndim
    size = draw.random.randint(1, max(1, tensor.shape[dim]))
    count = tensor.numel()
    rows = draw.random.randint(1, 3)
    columns = draw.random.randint(1, max(1, count // rows))
    step = draw.random.randint(0, max(0, (count - columns) // max(1, rows - 1)))
    codes = [f"{{0}}.unfold({dim}, {size}, {draw.among([1, 2])})"]
    codes += [f"{{0}}.contiguous().as_strided(({rows}, {columns}), ({step}, 1), 0)"]
    codes += [f"{{0}}.as_strided(({columns}, {rows}), (1, {step}))"]
    if tensor.ndim >= 2:
        codes += [f"torch.diagonal({{0}}, {draw.among([-1, 0, 1])})", f"torch.diagonal({{0}}, 0, {-1}, {0})"]
    if tensor.ndim == 4:
        codes += ["F.interpolate({0}, scale_factor=2, mode='nearest')", "F.pixel_unshuffle({0}, 2)"]
    return Step(draw.among(codes), (operand,))

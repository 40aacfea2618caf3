"""Steps that combine elements: reductions, scans, sorts, softmax and normalisations."""

from __future__ import annotations

from scripts.fuzzing.case import Step
from scripts.fuzzing.draw import Draw, NoOperand
from scripts.fuzzing.operations.pointwise import is_bool
from scripts.fuzzing.operations.registry import proposes

FLOATING = ["sum", "mean", "amax", "amin", "prod", "logsumexp", "var", "std"]
WHOLE = ["sum", "amax", "amin", "prod", "any", "all", "count_nonzero"]
ROUNDING = {"sum", "mean", "prod", "logsumexp", "var", "std"}


@proposes(12)
def reduction(draw: Draw) -> Step:
    operand = draw.value()
    tensor = draw[operand]
    name = draw.among(FLOATING if tensor.is_floating_point() else WHOLE)
    rounds = name in ROUNDING and tensor.is_floating_point()
    if name in ("any", "all", "prod"):
        where = draw.among([f"({draw.dim(tensor)}, keepdim=True)", f"({draw.dim(tensor)})", "()"])
    elif name == "count_nonzero":
        where = draw.among([f"({draw.dims(tensor)})", "()"])
    else:
        dims = draw.dims(tensor)
        where = draw.among(
            [f"({dims}, keepdim=True)", f"({dims})", f"({dims})", "()" if name != "logsumexp" else "(0)"]
        )
        if name in ("var", "std") and draw.chance(0.5):
            where = f"({dims}, correction={draw.among([0, 1, 2])}, keepdim={draw.chance(0.5)})"
    return Step(f"{{0}}.{name}{where}", (operand,), rounds=rounds)


@proposes(3)
def extreme_with_index(draw: Draw) -> Step:
    operand = draw.value(lambda tensor: not is_bool(tensor))
    dim, part = draw.dim(draw[operand]), draw.among([0, 1])
    codes = [f"torch.max({{0}}, {dim})[{part}]", f"torch.min({{0}}, {dim}, keepdim=True)[{part}]"]
    codes += [f"torch.argmax({{0}}, {dim})", f"torch.argmin({{0}}, {dim}, keepdim=True)", "torch.argmax({0})"]
    codes += ["torch.max({0})", "torch.min({0})", f"torch.aminmax({{0}}, dim={dim})[{part}]"]
    return Step(draw.among(codes), (operand,))


@proposes(2)
def scan_or_order(draw: Draw) -> Step:
    operand = draw.value(lambda tensor: not is_bool(tensor))
    dim = draw.dim(draw[operand])
    codes = [f"torch.cumsum({{0}}, {dim})", f"torch.sort({{0}}, {dim}, stable=True)[{draw.among([0, 1])}]"]
    codes += [f"torch.cummax({{0}}, {dim})[0]", f"torch.topk({{0}}, 1, {dim})[0]", f"torch.cumprod({{0}}, {dim})"]
    code = draw.among(codes)
    return Step(code, (operand,), rounds="sum" in code or "prod" in code)


@proposes(2)
def vector_norm(draw: Draw) -> Step:
    operand = draw.floating()
    order = draw.among(["2", "1", "inf", "-inf", "0", "3"])
    return Step(f"torch.linalg.vector_norm({{0}}, {order}, {draw.dims(draw[operand])})", (operand,), rounds=True)


@proposes(5)
def softmax(draw: Draw) -> Step:
    operand = draw.floating()
    dim = draw.dim(draw[operand])
    codes = [f"torch.softmax({{0}}, {dim})", f"torch.log_softmax({{0}}, {dim})"]
    codes.append(f"torch.softmax({{0}}, {dim}, dtype=torch.float32)")
    codes.append(f"torch.nn.functional.normalize({{0}}, dim={dim})")
    return Step(draw.among(codes), (operand,), rounds=True)


@proposes(5)
def normalisation(draw: Draw) -> Step:
    operand = draw.value(lambda tensor: tensor.is_floating_point() and tensor.ndim > 0)
    shape = draw[operand].shape
    sizes = tuple(shape[-draw.random.randint(1, len(shape)) :])
    codes = [f"F.layer_norm({{0}}, {sizes})", f"F.rms_norm({{0}}, {sizes}, eps=1e-5)"]
    if len(shape) >= 2 and shape[1] > 0:
        groups = draw.among([count for count in range(1, shape[1] + 1) if shape[1] % count == 0])
        codes += [f"F.group_norm({{0}}, {groups})", "F.instance_norm({0})" if len(shape) >= 3 else codes[0]]
    return Step(draw.among(codes), (operand,), rounds=True, mixes=True)


@proposes(1)
def affine_normalisation(draw: Draw) -> Step:
    operand = draw.value(lambda tensor: tensor.is_floating_point() and tensor.ndim >= 2)
    tensor = draw[operand]

    def vector(size: int) -> int:
        return draw.value(lambda other: other.dtype is tensor.dtype and tuple(other.shape) == (size,))

    if draw.chance(0.5):
        size = tensor.shape[-1]
        return Step(
            f"F.layer_norm({{0}}, ({size},), {{1}}, {{2}})",
            (operand, vector(size), vector(size)),
            rounds=True,
            mixes=True,
        )
    size = tensor.shape[1]
    mean, variance = vector(size), vector(size)
    code = "F.batch_norm({0}, {1}, {2}.abs() + 0.5, {1}, {2})"
    return Step(code, (operand, mean, variance), rounds=True, mixes=True)


@proposes(2)
def pooling(draw: Draw) -> Step:
    operand = draw.value(lambda tensor: tensor.is_floating_point() and tensor.ndim in (3, 4))
    if min(draw[operand].shape[-2:]) < 2:
        raise NoOperand
    codes = ["F.max_pool2d({0}, 2)", "F.avg_pool2d({0}, 2)", "F.adaptive_avg_pool2d({0}, 1)"]
    codes.append("F.avg_pool2d({0}, 2, stride=1, padding=1, count_include_pad=False)")
    code = draw.among(codes)
    return Step(code, (operand,), rounds="avg" in code)


@proposes(1)
def loss(draw: Draw) -> Step:
    first = draw.floating()
    shape = draw[first].shape
    second = draw.value(lambda other: other.shape == shape and other.dtype is draw[first].dtype)
    codes = ["F.mse_loss({0}, {1})", "F.l1_loss({0}, {1})", "F.smooth_l1_loss({0}, {1})"]
    codes += ["F.huber_loss({0}, {1}, reduction='none')", "torch.dist({0}, {1})"]
    return Step(draw.among(codes), (first, second), rounds=True)


@proposes(1)
def whole_statistics(draw: Draw) -> Step:
    operand = draw.floating()
    codes = ["torch.var_mean({0}, correction=0)[0]", "{0}.sum(dtype=torch.float64)"]
    if not draw.special:  # eager's mean of an infinity and numbers is NaN or the infinity, by which of them comes first
        codes.append("torch.std_mean({0}, correction=0)[1]")
    return Step(draw.among(codes), (operand,), rounds=True)

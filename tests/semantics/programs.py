"""What is more than a function of tensors: writes to arguments, aliases, state of modules, random numbers, control
flow, Python values, autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.semantics.case import Case, Inputs, case, each


def grid() -> tuple[Tensor]:
    return (torch.arange(24.0).view(4, 6),)


def two() -> tuple[Tensor, Tensor]:
    return torch.arange(24.0).view(4, 6), torch.arange(24.0).view(4, 6) + 1


def _shift(x: Tensor) -> Tensor:
    x[1:] = x[:-1].clone()
    return x


def _overlap(x: Tensor) -> Tensor:
    x = x.clone()
    first, second = x[:3], x[1:]
    first.add_(10)
    second.mul_(2)
    return first + second + x[1:3].sum()


def _through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    row = y[1]
    row.add_(100)
    y[:, 2] = -1
    return y.sum(1) + row.sum()


def _columns_of_a_transpose(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x + 0).t()
    y[1:3].zero_()
    return y, y.t()[0] * 2


def _strided_writes(x: Tensor) -> Tensor:
    y = x.clone()
    y.as_strided((3, 4), (7, 2), 1).mul_(-1)
    y.view(-1)[::5] += 1000
    return y


def _window_sums(x: Tensor) -> Tensor:
    y = torch.zeros(8)
    for start in range(3):
        y[start : start + 4] += x[0, :4] * (start + 1)
    return y


def _unfolded(x: Tensor) -> Tensor:
    y = x.flatten().clone()
    windows = y.unfold(0, 4, 2)
    y[3] = 500.0
    return windows.sum(1)


def _self_referring(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:] += y[:-1]
    return y


def _diagonal(x: Tensor) -> Tensor:
    y = x.clone()
    y.diagonal().fill_(9)
    y.t()[0] = y[0, :4]
    return y


def _swap(x: Tensor) -> Tensor:
    y = x.clone()
    y[0], y[1] = y[1], y[0]
    return y


def _flip_write(x: Tensor) -> Tensor:
    y = x.clone()
    y[:] = y.flip(0)
    return y


def _masked(x: Tensor) -> Tensor:
    y = x.clone()
    y[y > 5] = 0
    y[torch.tensor([0, 0, 1])] += 1
    return y


def _bits_written(x: Tensor) -> Tensor:
    y = x.clone()
    y.view(torch.int32)[0] = 0x3F800000
    return y * 2


def _copied(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.empty_like(x, dtype=torch.int32)
    y.copy_(x * 1.7)
    half = torch.empty(4, 6, dtype=torch.bfloat16)
    half[:] = x / 3
    return y, half


def _swapped_data(x: Tensor, y: Tensor) -> None:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


FUNCTIONAL = {
    "shifted rows": _shift,
    "overlapping slices": _overlap,
    "through a view": _through_a_view,
    "columns of a transpose": _columns_of_a_transpose,
    "strided writes": _strided_writes,
    "window sums": _window_sums,
    "unfolded": _unfolded,
    "self-referring": _self_referring,
    "diagonal": _diagonal,
    "swap": _swap,
    "flip write": _flip_write,
    "masked": _masked,
    "bits written": _bits_written,
    "copied into other types": _copied,
}

CHANGING = {
    "add_": lambda x: x.add_(1),
    "add_, nothing returned": lambda x: (x.add_(1), None)[1],
    "row": lambda x: x[1].mul_(3),
    "column": lambda x: x[:, 2].zero_(),
    "transposed": lambda x: x.t().mul_(2),
    "then read": lambda x: (x.mul_(2), x.sum())[1],
    "read before and after": lambda x: (x + 1, x.mul_(2), x + 1),
    "view made before": lambda x: (lambda view: (x.add_(1), view * 2)[1])(x[1:3]),
    "view returned": lambda x: x[1:3],
    "itself": lambda x: x,
    "itself twice": lambda x: (x, x),
    "view and itself": lambda x: (x.view(-1), x),
    "changed view": lambda x: (lambda view: (view.add_(1), view)[1])(x[1:3]),
    "detached": lambda x: x.detach(),
    "two views of one": lambda x: (lambda y: (y[0], y[1:], y))(x * 2),
    "one result twice": lambda x: (lambda y: (y, y))(x + 1),
    "transpose of a result": lambda x: (lambda y: (y, y.t()))(x + 1),
    "expanded result": lambda x: (x[:1] * 2).expand(4, 6),
    "expanded argument": lambda x: x[:1].expand(3, 6),
    "unfolded argument": lambda x: x.unfold(1, 2, 1),
    "contiguous argument": lambda x: x.contiguous(),
    "to its own type": lambda x: x.to(torch.float32),
    "reshape": lambda x: x.reshape(6, 4),
    "reshape that copies": lambda x: x.t().reshape(4, 6),
    "flatten": lambda x: x.flatten(),
    "clone": lambda x: x.clone(),
    "split": lambda x: x.split(2),
    "chunk and sum": lambda x: (x.chunk(2, 1), x.sum()),
    "real view": lambda x: torch.view_as_complex(x.view(4, 3, 2)),
    "other type": lambda x: x.view(torch.int32),
    "other type of a result": lambda x: (lambda y: (y, y.view(torch.int32)))(x * 2),
    "resize": lambda x: x.unsqueeze_(0),
    "transpose_": lambda x: (x.transpose_(0, 1), x * 2)[1],
    "set rows": lambda x: x.index_fill_(0, torch.tensor([1, 1]), 5.0),
    "scatter_": lambda x: x.scatter_add_(0, torch.zeros(1, 6, dtype=torch.long), torch.ones(1, 6)),
    "index_put_": lambda x: x.index_put_((torch.tensor([0, 0]),), torch.ones(2, 6), accumulate=True),
    "relu_": lambda x: F.relu_(x.sub_(5)),
    "clamp_": lambda x: x.clamp_(2, 9),
    "out": lambda x: torch.add(x, 1, out=x),
    "zero elements": lambda x: x[4:],
    "fill with itself": lambda x: x.copy_(x.flip(0)),
    "list": lambda x: [x, [x + 1, {"a": x * 2}]],
    "no tensor": lambda x: 3,
    "numbers": lambda x: (x.shape[0], x.stride(), x.dtype, x + 1),
    "constant": lambda x: (torch.zeros(3), torch.tensor(5), torch.arange(3)),
    "dropped": lambda x: (x + 1, None, "text"),
}
PAIRS = {
    "swapped data": _swapped_data,
    "first changed": lambda x, y: (x.add_(y), x * y),
    "both changed": lambda x, y: (x.add_(y), y.add_(x))[0],
    "select one": lambda x, y: y,
    "into the other": lambda x, y: (y.copy_(x * 2), x + y)[1],
}


def _one_memory() -> tuple[Tensor, Tensor]:
    base = torch.arange(48.0)
    return base[:24].view(4, 6), base[12:36].view(4, 6)


def _same_twice() -> tuple[Tensor, Tensor]:
    x = torch.arange(24.0).view(4, 6)
    return x, x


def _view_of_larger() -> tuple[Tensor]:
    return (torch.arange(60.0).view(6, 10)[1:5, 2:8],)


# ---- modules --------------------------------------------------------------------------------


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.count += x.mean()
        self.steps.add_(1)
        return x * self.count + self.steps


class Rebinding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.last
        self.last = x * 2
        return y


class Calls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6, bias=False)
        nn.init.eye_(self.inner.weight)
        self.inner.register_forward_hook(lambda module, args, output: output * 2)
        self.inner.register_forward_pre_hook(lambda module, args: (args[0] + 1,))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Ambient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6, bias=False)
        nn.init.eye_(self.linear.weight)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(x)
            with torch.autocast("cpu", enabled=False):
                z = self.linear(x)
        return y, z, self.linear(x)


def _batch_norm() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(6), nn.ReLU()).train()


def _momentum() -> nn.Module:
    return nn.BatchNorm1d(6, momentum=None).train()


def _instance_norm() -> nn.Module:
    return nn.InstanceNorm1d(4, track_running_stats=True).train()


MODULES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "counter": (Counter, {}),
    "rebinding": (Rebinding, {}),
    "calls": (Calls, {"optimize": False}),
    "hooked": (Hooked, {}),
    "autocast inside": (Ambient, {}),
    "batch norm in training": (_batch_norm, {"exact": False, "optimize": False}),
    "cumulative average": (_momentum, {"exact": False, "optimize": False}),
    "instance norm": (_instance_norm, {"exact": False, "optimize": False}),
}


# ---- random numbers -------------------------------------------------------------------------


RANDOM = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout of all": lambda x: F.dropout(x, 1.0),
    "dropout of nothing": lambda x: F.dropout(x, 0.0),
    "dropout2d": lambda x: F.dropout2d(x[None, :, :, None], 0.5),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "rand": lambda x: x + torch.rand(4, 6),
    "randn_like": lambda x: torch.randn_like(x) * 2,
    "randint": lambda x: x + torch.randint(0, 10, (4, 6)),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.5)),
    "normal_": lambda x: torch.empty(3).normal_() + 1,
    "uniform_": lambda x: x.clone().uniform_(-1, 1) * 2,
    "randperm": lambda x: torch.randperm(10) + 1,
    "multinomial": lambda x: torch.multinomial(torch.ones(5), 3),
    "two draws": lambda x: (torch.rand(3), torch.rand(3), F.dropout(x)),
    "exponential": lambda x: torch.empty(4).exponential_(),
    "poisson": lambda x: torch.poisson(torch.full((4,), 3.0)),
    "rrelu": lambda x: F.rrelu(x - 10, training=True),
    "gumbel": lambda x: -torch.empty_like(x).exponential_(),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
}


# ---- control flow and Python values ----------------------------------------------------------


def _cond(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 10, lambda x: x * 2, lambda x: x - 1, (x,))


def _nested_cond(x: Tensor) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        return torch.cond(x[0, 0] > 0, lambda x: x.relu(), lambda x: -x, (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x + 5, (x + 1,)) * 2


def _while(x: Tensor) -> Tensor:
    from torch._higher_order_ops import while_loop

    count, y = while_loop(lambda n, y: n < 5, lambda n, y: (n + 1, y * 2), (torch.zeros((), dtype=torch.long), x))
    return y + count


def _branch(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 10 else x - 1


def _loop(x: Tensor, count: int) -> Tensor:
    for number in range(count):
        x = x + number
    return x


def _item(x: Tensor) -> Tensor:
    return x * x.max().item()


def _nonzero(x: Tensor) -> Tensor:
    return x[x > 5] * 2


def _unique(x: Tensor) -> Any:
    return torch.unique(x % 3, return_counts=True)


def _try(x: Tensor) -> Tensor:
    try:
        return x @ x
    except RuntimeError:
        return x + 1


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor


def _valued(*values: Any) -> list[Inputs]:
    return [lambda value=value: (*grid(), value) for value in values]


def _negative() -> tuple[Tensor]:
    return (-torch.ones(4, 6),)


CONTROL = {
    "cond": case(_cond, grid, _negative),
    "nested cond": case(_nested_cond, grid, _negative),
    "while": case(_while, grid),
    "branch on data": case(_branch, grid, _negative),
    "loop": case(_loop, *_valued(3, 4, 5, 3)),
    "item": case(_item, grid, _negative),
    "nonzero": case(_nonzero, grid, _negative, grid),
    "unique": case(_unique, grid),
    "try": case(_try, grid, lambda: (torch.ones(3, 3),)),
    "float": case(_scaled, *_valued(2.0, 3.0, 0.5, -0.0, 0.0, float("nan"), 2, True, 2.0)),
    "int": case(lambda x, n: x + n, *_valued(2, 3, 0, -1, 2.5)),
    "bool": case(lambda x, flag: x + 1 if flag else x - 1, *_valued(True, False, True, None)),
    "floor by a float": case(lambda x, n: x // n, *_valued(2.0, 3.0, -2.0)),
    "power": case(lambda x, n: x**n, *_valued(2, 3, 2.0, 0)),
    "clamp": case(lambda x, n: x.clamp(max=n), *_valued(2.5, 3.5, 7.0)),
    "dim": case(lambda x, dim: x.sum(dim), *_valued(0, 1, -1)),
    "text": case(lambda x, mode: F.pad(x, (1, 1), mode=mode), *_valued("constant", "reflect")),
    "dict": case(lambda x, d: x * d["a"], *_valued({"a": 2.0}, {"a": 3.0}, {"a": 3})),
    "shapes": case(lambda x: x * x.shape[0], grid, lambda: (torch.ones(3, 2),), lambda: (torch.ones(5, 2),), grid),
    "strides": case(lambda x: x + 1, grid, lambda: (grid()[0].t(),), lambda: (torch.ones(1).expand(4, 6),)),
    "dtypes": case(lambda x: x * 2, grid, lambda: (grid()[0].int(),), lambda: (grid()[0].bool(),)),
    "view of a larger one": case(lambda x: x * 2, grid, _view_of_larger),
    "one memory": case(lambda x, y: (x.add_(1), y * 2), two, _one_memory, _same_twice, two),
    "no grad inside": case(lambda x: x * 2 + torch.ones(6), grid),
    "default dtype": case(lambda x: torch.zeros(2) + x.sum(), grid),
}


def _cases() -> dict[str, Case]:
    found = {f"writes: {name}": one for name, one in each(grid, FUNCTIONAL).items()}
    found |= {f"argument: {name}": one for name, one in each(grid, CHANGING).items()}
    found |= {f"arguments: {name}": one for name, one in each(two, PAIRS).items()}
    found |= {f"arguments of one memory: {name}": one for name, one in each(_one_memory, PAIRS).items()}
    found |= {f"an argument twice: {name}": one for name, one in each(_same_twice, PAIRS).items()}
    found |= {
        f"view of a larger one: {name}": one
        for name, one in each(_view_of_larger, CHANGING).items()
        if name in ("add_", "row", "view returned", "reshape", "itself", "transposed", "contiguous argument")
    }
    found |= {f"module: {name}": Case(make, grid, (grid, grid), **options) for name, (make, options) in MODULES.items()}
    found |= {f"random: {name}": case(function, grid, grid) for name, function in RANDOM.items()}
    return found | CONTROL


CASES = _cases()

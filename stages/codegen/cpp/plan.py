"""How one kernel runs on the CPU: the axis that lanes lie along, the order of loops, passes over the row, what is kept.

Comes in: a `Kernel` and a `Schedule`. Goes out: a `Plan`, which `printer.py` turns into C++.

A *pass* is one loop over the row: it evaluates the reductions that need nothing but earlier passes, and the last one
stores along the row. A value that several passes need is kept in a scratch row where that costs less than to compute it
again (the exponentials of a softmax, a converted half).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from stages.codegen.cpp.operators import weight
from stages.ir.dtype import DType
from stages.ir.expr import Axis, Expr, Load, Op, Reduce, Select, Var, op
from stages.ir.index import coefficient
from stages.ir.kernel import IRError, Kernel, Store, product
from stages.ir.schedule import Schedule

VECTOR_WIDTHS = (1, 2, 4, 8, 16)
UNROLLS = (1, 2, 4, 8)
# Costs in units of one addition: a load that is not of neighbouring elements, and keeping a value for a later pass.
GATHER, KEEP = 6.0, 2.0
# Additions that one thread must at least have, and pieces that an axis is cut in to share it out.
GRAIN, PIECES = 100_000.0, 64


@dataclass(frozen=True)
class Pass:
    """One loop over the row: what it reduces, stores, takes from the scratch rows and puts there."""

    reduces: tuple[Reduce, ...]
    stores: tuple[Store, ...]
    takes: tuple[Expr, ...]
    keeps: tuple[Expr, ...]

    @property
    def roots(self) -> tuple[Expr, ...]:
        """What is evaluated in the loop."""
        return (*(r.body for r in self.reduces), *(e for store in self.stores for e in (store.index, store.value)))


@dataclass(frozen=True)
class Plan:
    """See the head of this file.

    lane_axis     the axis that vectors lie along; None for a kernel with no loop
    width, lanes  elements of one SIMD operation, and of all that are unrolled together; powers of two
    items         parallel axes that are shared out to threads, outermost first; `lane_axis` is none of them
    tile          elements of `lane_axis` in one item where that is parallel, a multiple of `lanes`
    inner         axes of the row, outermost loop first; `lane_axis` last where it is one of them
    passes        loops over the row (one without a loop for a pointwise kernel)
    after         stores once a row
    cost          of one position of the row, in additions
    """

    kernel: Kernel
    lane_axis: Axis | None
    width: int
    lanes: int
    items: tuple[Axis, ...]
    tile: int
    inner: tuple[Axis, ...]
    passes: tuple[Pass, ...]
    after: tuple[Store, ...]
    cost: float

    @property
    def lanes_in_row(self) -> bool:
        """Whether vectors lie along the row, so that reductions end with a fold over lanes."""
        return self.lane_axis in self.kernel.inner

    @property
    def tiles(self) -> int:
        """Pieces that a parallel `lane_axis` is cut in."""
        if self.lane_axis is None or self.lanes_in_row:
            return 1
        return -(-self.lane_axis.extent // self.tile)

    @property
    def count(self) -> int:
        """Items of work to share out."""
        return product(self.items) * self.tiles

    @property
    def grain(self) -> int:
        """Items that a thread must have at least."""
        return max(1, round(GRAIN / (self.cost * self.kernel.rows * self.kernel.row_size / self.count)))


def plan(kernel: Kernel, schedule: Schedule) -> Plan:
    """The plan of `kernel` under `schedule`. Raises `IRError` for a vector width or unroll that there is none of."""
    if schedule.vector_width not in VECTOR_WIDTHS or schedule.unroll not in UNROLLS:
        raise IRError(f"schedule: vector_width is one of {VECTOR_WIDTHS}, unroll one of {UNROLLS}: {schedule.text()}")
    axis = _lane_axis(kernel, schedule.vector_width)
    cost = _price(_evaluated(kernel.stores, axis), axis) + len(kernel.stores)
    extent = axis.extent if axis else 1
    width = min(schedule.vector_width, 1 << (extent - 1).bit_length())
    lanes = min(width * schedule.unroll, 1 << (extent - 1).bit_length())
    items = tuple(a for a in kernel.parallel if a != axis)
    inner = tuple(a for a in kernel.inner if a != axis)
    if axis in kernel.inner:
        inner = (*inner, axis)
    return Plan(
        kernel=kernel,
        lane_axis=axis,
        width=width,
        lanes=lanes,
        items=items,
        tile=_tile(extent, lanes, product(items), cost * kernel.row_size),
        inner=inner,
        passes=_passes(kernel, axis, inner[-1] if inner else None, schedule.persistent),
        after=tuple(store for store in kernel.stores if kernel.inner and not store.inner),
        cost=cost,
    )


def _tile(extent: int, lanes: int, items: int, cost: float) -> int:
    """Elements of a parallel lane axis in one item: all, unless there are too few other axes to share out."""
    blocks = -(-extent // lanes)
    pieces = max(1, min(-(-PIECES // items), int(extent * cost / (GRAIN / 4)), blocks))
    return lanes * -(-blocks // pieces)


# ---- the lane axis ---------------------------------------------------------------------------


def _lane_axis(kernel: Kernel, width: int) -> Axis | None:
    """The axis along which memory is read best; the last of the row, or the last parallel one, where all are alike."""
    counts_positions = any(reduction.combine in ("argmax", "argmin") for reduction in kernel.reduces)
    inner = kernel.inner[-1:] if counts_positions else kernel.inner
    best: Axis | None = None
    least = 0.0
    for axis in (*reversed(inner), *reversed(kernel.parallel)):
        used = axis.extent / (-(-axis.extent // width) * width)
        stores = sum(1.0 + _reach(store.index, axis) for store in kernel.stores)
        # Another than the favourite has to be better by more than a rounding.
        work = _price(_evaluated(kernel.stores, axis), axis) + stores
        price = work / used * (1.0 if best is None else 1.05)
        if best is None or price < least:
            best, least = axis, price
    return best


def _reach(index: Expr, lane_axis: Axis | None) -> float:
    """What an access costs beyond one of neighbouring elements."""
    return 0.0 if lane_axis is None or coefficient(index, lane_axis) in (0, 1) else GATHER


def _plain(index: Expr, lane_axis: Axis | None) -> bool:
    """Whether `index` is an address and a step, which cost nothing beside the access; else each lane needs its own."""
    return lane_axis is None or coefficient(index, lane_axis) is not None


def _evaluated(stores: Iterable[Store], lane_axis: Axis | None) -> list[Expr]:
    """What `stores` evaluate: their values, and those indices that are not plain."""
    indices = [store.index for store in stores if not _plain(store.index, lane_axis)]
    return [*indices, *(store.value for store in stores)]


def _operands(node: Expr, lane_axis: Axis | None) -> tuple[Expr, ...]:
    """The children that are evaluated for `node`."""
    skip = isinstance(node, Load) and _plain(node.index, lane_axis)
    return node.children[1:] if skip else node.children


def _price(roots: Iterable[Expr], lane_axis: Axis | None) -> float:
    """What it costs to evaluate `roots` at one position, in additions."""
    return sum(_own_price(node, lane_axis) for node in _below(roots, lane_axis))


def _own_price(node: Expr, lane_axis: Axis | None) -> float:
    return weight(node) + (_reach(node.index, lane_axis) if isinstance(node, Load) else 0.0)


def _below(roots: Iterable[Expr], lane_axis: Axis | None, stop: Callable[[Expr], bool] | None = None) -> Iterator[Expr]:
    """What is evaluated for `roots`, each node once; not below the nodes where `stop` holds, nor those themselves."""
    seen, stack = set[Expr](), list(roots)
    while stack:
        node = stack.pop()
        if node not in seen and not (stop and stop(node)):
            seen.add(node)
            yield node
            stack.extend(_operands(node, lane_axis))


# ---- passes over the row ---------------------------------------------------------------------


def _passes(kernel: Kernel, lane_axis: Axis | None, last: Axis | None, persistent: bool) -> tuple[Pass, ...]:
    ready: dict[Expr, int] = {}  # the first pass in whose loop a value can be used
    for node in kernel.nodes:
        ready[node] = max((ready[child] for child in node.children), default=0) + isinstance(node, Reduce)
    along = tuple(store for store in kernel.stores if store.inner or not kernel.inner)
    store_pass = max((ready[root] for store in along for root in (store.index, store.value)), default=0)
    last_pass = max([store_pass, *(ready[reduction] - 1 for reduction in kernel.reduces)])
    # All stores wait for the last pass: an output may share memory with an input that a later pass would read again.
    passes = [
        Pass(
            reduces=tuple(reduction for reduction in kernel.reduces if ready[reduction] - 1 == number),
            stores=along if number == last_pass else (),
            takes=(),
            keeps=(),
        )
        for number in range(last_pass + 1)
    ]
    return _with_keeps(passes, lane_axis, last) if persistent and last is not None else tuple(passes)


def _with_keeps(passes: list[Pass], lane_axis: Axis | None, last: Axis) -> tuple[Pass, ...]:
    """`passes`, with what is cheaper to keep from an earlier one than to compute again.

    A pass is looked at from its roots down, so that of a chain worth keeping only the end is kept.
    """
    varying = _varying([root for each in passes for root in each.roots], {last, *((lane_axis,) if lane_axis else ())})
    first: dict[Expr, int] = {}
    kept: dict[Expr, None] = {}
    takes: list[list[Expr]] = []

    def price_again(node: Expr) -> float:
        """What `node` costs in a later pass: what does not vary is hoisted, and what is kept anyway is one load."""
        below = _below((node,), lane_axis, lambda other: other not in varying or (other in kept and other is not node))
        evaluated = list(below)
        loads = {child for other in evaluated for child in _operands(other, lane_axis) if child in kept}
        return sum(_own_price(other, lane_axis) for other in evaluated) + len(loads)

    for number, each in enumerate(passes):
        taken: dict[Expr, None] = {}

        def is_taken(node: Expr, number: int = number, taken: dict[Expr, None] = taken) -> bool:
            held = node in varying and not node.dtype.is_half and node.dtype is not DType.BOOL
            if held and first.get(node, number) < number and price_again(node) > KEEP:
                taken[node] = None
            return node in taken or isinstance(node, Reduce)

        roots = [*(reduction.body for reduction in each.reduces), *_evaluated(each.stores, lane_axis)]
        for node in list(_below(roots, lane_axis, is_taken)):
            first.setdefault(node, number)
        kept |= taken
        takes.append(list(taken))
    return tuple(
        Pass(each.reduces, each.stores, tuple(takes[number]), tuple(node for node in kept if first[node] == number))
        for number, each in enumerate(passes)
    )


def _varying(roots: Iterable[Expr], axes: set[Axis]) -> set[Expr]:
    """The nodes that depend on each of `axes` in the loop where they stand."""
    uses: dict[Expr, frozenset[Axis]] = {}
    for node in walk_row(*roots):
        if isinstance(node, Var):
            uses[node] = frozenset({node.axis})
        elif isinstance(node, Reduce):
            uses[node] = frozenset()
        else:
            uses[node] = frozenset().union(*(uses[child] for child in node.children))
    return {node for node, found in uses.items() if axes <= found}


def walk_row(*roots: Expr) -> Iterable[Expr]:
    """The nodes that one pass evaluates: `walk`, but a reduction is a value that is there already."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            if not isinstance(node, Reduce):
                stack.extend((child, False) for child in reversed(node.children))


def guards(roots: Sequence[Expr], known: Iterable[Expr] = ()) -> dict[Expr, Expr | None]:
    """For each `bounded` that `roots` evaluate: the condition under which its value is observed; None is always.

    It is the disjunction over its uses of what selects and masks between it and a root ask for. Nothing is looked for
    below the nodes of `known`, whose values are there already.
    """
    stop = set(known)
    observed: dict[Expr, Expr | None] = dict.fromkeys(roots)
    for node in reversed(list(walk_row(*roots))):
        if node not in observed or node in stop or isinstance(node, Reduce):
            continue
        for position, child in enumerate(node.children):
            condition = _condition(node, position)
            here = observed[node] if condition is None else _all(observed[node], condition)
            before = observed.get(child, here)
            observed[child] = (
                None if before is None or here is None else before if before is here else op("or", before, here)
            )
    return {node: when for node, when in observed.items() if isinstance(node, Op) and node.name == "bounded"}


def _condition(node: Expr, position: int) -> Expr | None:
    """What has to hold for the child of `node` at `position` to be observed, beside what has to for `node` itself."""
    if isinstance(node, Select) and position > 0:
        return node.condition if position == 1 else op("not", node.condition)
    return node.mask if isinstance(node, Load) and position == 0 else None


def _all(condition: Expr | None, other: Expr) -> Expr:
    return other if condition is None else op("and", condition, other)

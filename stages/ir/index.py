"""Index arithmetic in a canonical form: sums of whole multiples of atoms, with floor division and modulo by constants.

Comes in: int64 expressions. Goes out: an equal one, simplified with the ranges of its axes, so that the composition of
views (reshape, permute, slice, expand, ...) ends as plain strides wherever it can. All extents are known numbers.

An atom is anything but a sum or a multiple: a `Var`, a floor division or modulo that would not simplify, a `Load`.
The rules, for c > 0 and `lo`, `hi` the range of an expression:

    (c*a + b) // c        = a + b // c
    (c*a + b) %  c        = b % c
    b // c = 0, b % c = b                                 where 0 <= lo(b) and hi(b) < c
    (g*a + k) // (g*c)    = (a + k//g) // c               and (g*a + k) % (g*c) = g * ((a + k//g) % c) + k % g
    (g*a + b) // (g*c)    = a // c                        and (g*a + b) % (g*c) = g * (a % c) + b where 0 <= b < g
    (a // b) // c         = a // (b*c)
    (a % (c*m)) // c      = (a // c) % m                  and (a % (c*m)) % c = a % c
    c * (a // c) + a % c  = a
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from stages.ir.dtype import DType
from stages.ir.expr import Axis, Const, Expr, Load, Op, Reduce, Var, const, op, rebuild, reduce, var, walk

Terms = dict[Expr, int]


def number(value: int) -> Const:
    """`value` as an index."""
    return const(value, DType.INT64)


def terms_of(index: Expr) -> tuple[int, Terms]:
    """`index` as (constant, {atom: coefficient}); only sums and multiples by constants are taken apart."""
    total = 0
    terms: Terms = {}

    def visit(node: Expr, factor: int) -> None:
        nonlocal total
        if isinstance(node, Const):
            total += factor * int(node.value)
        elif isinstance(node, Op) and node.name == "add":
            for arg in node.args:
                visit(arg, factor)
        elif isinstance(node, Op) and node.name == "mul" and isinstance(node.args[1], Const):
            visit(node.args[0], factor * int(node.args[1].value))
        else:
            terms[node] = terms.get(node, 0) + factor

    visit(index, 1)
    return total, {atom: factor for atom, factor in terms.items() if factor}


def coefficient(index: Expr, axis: Axis) -> int | None:
    """Elements by which `index` moves with one step of `axis`; None where that is not one number."""
    step = 0
    for atom, factor in terms_of(index)[1].items():
        if isinstance(atom, Var):
            step += factor if atom.axis == axis else 0
        elif any(isinstance(node, Var) and node.axis == axis for node in walk(atom)):
            return None
    return step


def bounds(index: Expr) -> tuple[int, int] | None:
    """The least and the largest value of `index`; None where it is not known (a loaded index)."""
    total, terms = terms_of(index)
    low = high = total
    for atom, factor in terms.items():
        span = _atom_bounds(atom)
        if span is None:
            return None
        ends = (span[0] * factor, span[1] * factor)
        low, high = low + min(ends), high + max(ends)
    return low, high


def _atom_bounds(atom: Expr) -> tuple[int, int] | None:
    if isinstance(atom, Var):
        return 0, atom.axis.extent - 1
    if isinstance(atom, Op) and isinstance(atom.args[-1], Const):
        size = int(atom.args[-1].value)
        if atom.name in ("mod", "bounded"):
            return 0, size - 1
        if atom.name == "floordiv" and (span := bounds(atom.args[0])) is not None:
            return span[0] // size, span[1] // size
    return None


def _order(atom: Expr) -> tuple[int, str]:
    """A stable order of atoms: variables by name, then the rest by their text."""
    return (0, atom.axis.name) if isinstance(atom, Var) else (1, text(atom))


def build(total: int, terms: Terms) -> Expr:
    """The canonical expression of a constant and terms; joins `c*(a//c) + a%c`."""
    total, terms = _join(total, dict(terms))
    result: Expr | None = None
    for atom in sorted(terms, key=_order):
        if (factor := terms[atom]) == 0:
            continue
        term = atom if factor == 1 else op("mul", atom, number(factor))
        result = term if result is None else op("add", result, term)
    if result is None:
        return number(total)
    return result if total == 0 else op("add", result, number(total))


def _join(total: int, terms: Terms) -> tuple[int, Terms]:
    """Replace f*(a % c) by f*a - f*c*(a // c) wherever that cancels every part of the quotient."""
    for atom in list(terms):
        if not (isinstance(atom, Op) and atom.name == "mod" and isinstance(atom.args[1], Const) and atom in terms):
            continue
        whole, size = atom.args[0], int(atom.args[1].value)
        scale = terms[atom] * size
        count, quotient = terms_of(floordiv(whole, size))
        if quotient and all(terms.get(part) == scale * times for part, times in quotient.items()):
            factor = terms.pop(atom)
            for part in quotient:
                del terms[part]
            more, inner = terms_of(whole)
            total += factor * more - scale * count
            for part, times in inner.items():
                terms[part] = terms.get(part, 0) + factor * times
    return total, terms


def add(*parts: Expr | int) -> Expr:
    """The sum of indices."""
    total = 0
    terms: Terms = {}
    for part in parts:
        more, extra = (part, {}) if isinstance(part, int) else terms_of(part)
        total += more
        for atom, factor in extra.items():
            terms[atom] = terms.get(atom, 0) + factor
    return build(total, terms)


def mul(index: Expr, factor: int) -> Expr:
    """`index` times a number."""
    total, terms = terms_of(index)
    return build(total * factor, {atom: scale * factor for atom, scale in terms.items()})


def _split(index: Expr, size: int) -> tuple[int, Terms, int, Terms]:
    """`index` as size * (whole part) + rest: (constant and terms of the whole, constant and terms of the rest)."""
    total, terms = terms_of(index)
    whole = {atom: factor // size for atom, factor in terms.items() if factor % size == 0}
    rest = {atom: factor for atom, factor in terms.items() if factor % size}
    return total // size, whole, total % size, rest


def _fits(total: int, terms: Terms, size: int) -> bool:
    span = bounds(build(total, terms))
    return span is not None and 0 <= span[0] and span[1] < size


def floordiv(index: Expr, size: int) -> Expr:
    """`index // size`, rounded towards minus infinity; `size` > 0."""
    if size == 1:
        return index
    count, whole, total, rest = _split(index, size)
    if not rest or _fits(total, rest, size):
        return build(count, whole)
    return add(build(count, whole), _reduced_div(total, rest, size))


def _digits(total: int, terms: Terms, size: int) -> tuple[int, Expr, Expr] | None:
    """The sum as unit * upper + lower, 0 <= lower < unit, unit > 1 a divisor of `size`; None without such a unit."""
    factors = sorted({math.gcd(size, factor) for factor in terms.values()}, reverse=True)
    for unit in factors:
        if unit == 1:
            return None
        low = {atom: factor for atom, factor in terms.items() if factor % unit}
        if low and _fits(total % unit, low, unit):
            high = {atom: factor // unit for atom, factor in terms.items() if factor % unit == 0}
            return unit, build(total // unit, high), build(total % unit, low)
    return None


def _reduced_div(total: int, terms: Terms, size: int) -> Expr:
    shared = math.gcd(size, *terms.values())
    if shared > 1:
        inner = build(total // shared, {atom: factor // shared for atom, factor in terms.items()})
        return floordiv(inner, size // shared)
    if (parts := _digits(total, terms, size)) is not None:
        unit, upper, _ = parts
        return floordiv(upper, size // unit)
    if total == 0 and len(terms) == 1:
        (atom, factor), *_ = terms.items()
        if factor == 1 and isinstance(atom, Op) and isinstance(atom.args[-1], Const):
            inner, by = atom.args[0], int(atom.args[-1].value)
            if atom.name == "floordiv":
                return floordiv(inner, by * size)
            if atom.name == "mod" and by % size == 0:
                return mod(floordiv(inner, size), by // size)
    return op("floordiv", build(total, terms), number(size))


def mod(index: Expr, size: int) -> Expr:
    """`index` modulo `size`, in [0, size); `size` > 0."""
    if size == 1:
        return number(0)
    _, _, total, rest = _split(index, size)
    rest = {atom: factor % size for atom, factor in rest.items()}
    if not rest or _fits(total, rest, size):
        return build(total, rest)
    shared = math.gcd(size, *rest.values())
    if shared > 1:
        inner = build(total // shared, {atom: factor // shared for atom, factor in rest.items()})
        return add(mul(mod(inner, size // shared), shared), total % shared)
    if (parts := _digits(total, rest, size)) is not None:
        unit, upper, lower = parts
        return add(mul(mod(upper, size // unit), unit), lower)
    if total == 0 and len(rest) == 1:
        (atom, factor), *_ = rest.items()
        if factor == 1 and isinstance(atom, Op) and atom.name == "mod" and isinstance(atom.args[1], Const):
            if int(atom.args[1].value) % size == 0:
                return mod(atom.args[0], size)
    return op("mod", build(total, rest), number(size))


def linearize(indices: Sequence[Expr], strides: Sequence[int], offset: int = 0) -> Expr:
    """The element offset of a position: sum of index * stride, plus `offset`."""
    return add(offset, *(mul(index, stride) for index, stride in zip(indices, strides, strict=True)))


def delinearize(flat: Expr, shape: Sequence[int]) -> tuple[Expr, ...]:
    """The position in `shape` (row-major) of element number `flat`."""
    position: list[Expr] = []
    for extent in reversed(shape):
        position.append(mod(flat, extent))
        flat = floordiv(flat, extent)
    return tuple(reversed(position))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of `shape`, in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def substitute(root: Expr, values: Mapping[Axis, Expr], axes: Mapping[Axis, tuple[Axis, ...]] | None = None) -> Expr:
    """`root` with each axis replaced by an index, and index arithmetic simplified anew.

    A `Reduce` binds its axes, so they are replaced inside it only if `axes` says by which axes it then runs
    (used to split or merge loops of a whole kernel); otherwise a reduce over a replaced axis is left alone.
    """
    return substitute_all((root,), values, axes)[0]


def substitute_all(
    roots: Sequence[Expr], values: Mapping[Axis, Expr], axes: Mapping[Axis, tuple[Axis, ...]] | None = None
) -> tuple[Expr, ...]:
    """`substitute` for several roots at once: what they share is rewritten once."""
    axes = axes or {}
    done: dict[tuple[int, frozenset[Axis]], Expr] = {}

    def visit(node: Expr, bound: frozenset[Axis]) -> Expr:
        key = (id(node), bound)
        if key not in done:
            done[key] = rewrite(node, bound)
        return done[key]

    def rewrite(node: Expr, bound: frozenset[Axis]) -> Expr:
        if isinstance(node, Var):
            return node if node.axis in bound else values.get(node.axis, node)
        if isinstance(node, Reduce):
            kept = frozenset(axis for axis in node.axes if axis not in axes)
            body = visit(node.body, bound | kept)
            return reduce(node.combine, tuple(a for axis in node.axes for a in axes.get(axis, (axis,))), body)
        if not node.children:
            return node
        children = tuple(visit(child, bound) for child in node.children)
        if isinstance(node, Op) and node.dtype is DType.INT64 and not _same(node, children):
            if (simple := _simplified(node.name, children)) is not None:
                return simple
        return rebuild(node, children)

    return tuple(visit(root, frozenset()) for root in roots)


def _same(node: Expr, children: tuple[Expr, ...]) -> bool:
    return all(new is old for new, old in zip(children, node.children, strict=True))


def _simplified(name: str, children: tuple[Expr, ...]) -> Expr | None:
    """Index arithmetic over new operands in canonical form; None for what is no index arithmetic.

    Values of type int64 go the same way: the rules hold for any whole number that does not overflow, and an index
    never does. A product of two loads, or a division by a load, is left as it is.
    """
    if name == "add":
        return add(*children)
    if len(children) == 2 and isinstance(children[1], Const):
        size = int(children[1].value)
        if name == "mul":
            return mul(children[0], size)
        if name == "floordiv" and size > 0:
            return floordiv(children[0], size)
        if name == "mod" and size > 0:
            return mod(children[0], size)
    return None


def bounded(index: Expr, size: int) -> Expr:
    """`index` as torch reads a user's index into a dimension of `size`: negative counts from the end.

    The check is dropped where the range of `index` is known to lie in [0, size).
    """
    span = bounds(index)
    if span is not None and 0 <= span[0] and span[1] < size:
        return index
    return op("bounded", index, number(size))


def text(index: Expr) -> str:
    """A short form for messages and for ordering: `i0*768 + (r0 // 2)`."""
    if isinstance(index, Const):
        return str(index.value)
    if isinstance(index, Var):
        return index.axis.name
    if isinstance(index, Load):
        return f"{index.buffer.name}[{text(index.index)}]"
    signs = {"add": "+", "mul": "*", "floordiv": "//", "mod": "%"}
    if isinstance(index, Op) and index.name in signs:
        return "(" + f" {signs[index.name]} ".join(text(arg) for arg in index.args) + ")"
    name = index.name if isinstance(index, Op) else type(index).__name__.lower()
    return f"{name}({', '.join(text(child) for child in index.children)})"


def variables(axes: Sequence[Axis]) -> tuple[Expr, ...]:
    """The running index of each axis."""
    return tuple(var(axis) for axis in axes)

"""Which rule of the config lets two groups become one. Legality is elsewhere: a rule says what is wanted."""

from __future__ import annotations

from collections.abc import Sequence

from stages.fusion.config import Rule
from stages.fusion.kernels import Built, Refusal


def relation_of(producer: Built, consumer: Built) -> str | None:
    """How the loops of two kernels relate: one of `config.RELATIONS`; None where both reduce, but other rows.

    Siblings come in any order.
    """
    if producer.reduces and consumer.reduces:
        return "row" if _rows(producer) == _rows(consumer) else None
    if producer.reduces or consumer.reduces:
        row, other = (producer, consumer) if producer.reduces else (consumer, producer)
        if other.positions in (row.positions, row.kernel.rows):
            return "row"
    elif producer.positions == consumer.positions:
        return "same"
    return "broadcast" if producer.positions < consumer.positions else "part"


def _rows(built: Built) -> tuple[int, int]:
    return built.kernel.rows, built.kernel.row_size


def find_rule(
    rules: Sequence[Rule], producer: Built, consumer: Built, kinds: tuple[str, str], siblings: bool, recomputed: bool
) -> Rule | Refusal:
    """The first rule for a producer and its consumer (or two siblings) of these kinds whose limits hold.

    recomputed: the producer is to be computed in the consumer though others compute it too.
    If there is none, the refusal has the reason of the rule that came closest.
    """
    relation = relation_of(producer, consumer)
    shapes = _shape(producer, kinds[0]), _shape(consumer, kinds[1])
    if relation is None:
        return Refusal(f"they reduce different rows: {shapes[0]}, {shapes[1]}")
    closest = Refusal(f"no rule joins {shapes[0]} with {shapes[1]} ({relation})")
    for rule in rules:
        if relation not in rule.relations or not _absorbs(rule, kinds, siblings):
            continue
        again = producer.work if recomputed or relation == "broadcast" else 0
        if again > rule.max_recompute:
            closest = Refusal(
                f"{again} operations would be computed again at each of {consumer.positions} positions; "
                f"rule '{rule.name}' allows {rule.max_recompute}"
            )
            continue
        longest = max(built.kernel.row_size for built in (producer, consumer))
        if longest > rule.max_row:
            closest = Refusal(f"a row has {longest} elements; rule '{rule.name}' allows {rule.max_row}")
            continue
        return rule
    return closest


def _absorbs(rule: Rule, kinds: tuple[str, str], siblings: bool) -> bool:
    first, second = kinds
    if siblings:
        return (first in rule.anchors and second in rule.siblings) or (
            second in rule.anchors and first in rule.siblings
        )
    return (second in rule.anchors and first in rule.producers) or (first in rule.anchors and second in rule.consumers)


def _shape(built: Built, kind: str) -> str:
    if built.reduces:
        return f"a {kind} over {built.kernel.rows} rows of {built.kernel.row_size}"
    return f"a {kind} over {built.positions} positions"

"""The steps that a graph may be made of, by family. Importing this package fills the table."""

from scripts.fuzzing.operations import movement, mutation, pointwise, products, reductions
from scripts.fuzzing.operations.registry import PROPOSALS, choose

__all__ = ["PROPOSALS", "choose", "movement", "mutation", "pointwise", "products", "reductions"]

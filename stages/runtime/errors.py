"""Errors while a program runs: they say which step failed, what it is, and which line of the user's code it is from."""

from __future__ import annotations

from stages.ir.errors import UserError, in_class_of
from stages.ir.program import Launch, Program


class StepError(UserError, RuntimeError):
    """A step of a program failed; the cause is the error itself, and of its class is this one, too.

    Callers catch what they would catch of eager: `IndexError`, `NotImplementedError`, `torch.OutOfMemoryError`.
    """


class InputMismatch(UserError):
    """An input of a call is not like the captured one."""


class StaleProgram(UserError):
    """A weight changed in a way that the program was not made for: it has to be compiled again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "Compile the model again.")


def describe(program: Program, number: int) -> str:
    """`step 3, kernel fused_gelu_0 (model.py:12: y = gelu(x))`."""
    step = program.steps[number]
    what = f"kernel {step.kernel.name}" if isinstance(step, Launch) else f"operator {step.target}"
    origin = next((origin for origin in step.origins if origin.file), None)
    if origin is None:
        return f"step {number}, {what}"
    code = f": {origin.code}" if origin.code else ""
    return f"step {number}, {what} ({origin}{code})"


def step_error(program: Program, number: int, error: Exception) -> UserError:
    """`error`, raised by step `number`, as one that says so."""
    return in_class_of(
        error,
        f"{describe(program, number)}: {error}",
        "Run the model itself on the same inputs: if it fails too, the fault is in the model or its inputs.",
        StepError,
    )

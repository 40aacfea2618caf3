"""A compiled graph under AOTAutograd's calling convention, out of sight of the mode that watches its first call.

AOTAutograd runs every graph once under a dispatch mode, to warn of custom operators whose results share memory with
their arguments. Some of eager's kernels ask whether any mode is active and then compute in another way; for complex
matrices that way is wrong (linalg_pinv, linalg_lstsq, linalg_polar in torch 2.14: a conjugate is lost), and a graph's
first result with it. What custom operators return is compared with eager's by validation, memory and all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from torch._functorch._aot_autograd import runtime_wrappers
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode_temporarily

# Torch 2.11 may have none.
_WATCHING = getattr(runtime_wrappers, "_AnalyzeCustomOpInputOutputMode", ())


def boxed(run: Callable[[list[Any]], Sequence[Any]]) -> Callable[[list[Any]], Sequence[Any]]:
    """`run` as a function of one list, which the callee may empty to free memory early."""

    def call(arguments: list[Any]) -> Sequence[Any]:
        watched = isinstance(_get_current_dispatch_mode(), _WATCHING)
        with _pop_mode_temporarily() if watched else nullcontext():
            return run(arguments)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call

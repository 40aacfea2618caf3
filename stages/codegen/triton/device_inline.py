"""`device` as instructions of the GPU. The waits need capability 9.0."""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gdc_wait() -> None:
    """Wait until the launches before this one have ended and their writes can be read."""
    tl.extra.cuda.gdc_wait()


@triton.jit
def gdc_launch_dependents() -> None:
    """Let the next launch begin where processors are free; it waits for this one's end itself."""
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def prefetch(pointer: tl.tensor, mask: tl.tensor) -> None:
    """Bring the line of each address into L2 where `mask` holds; a hint that nothing waits for."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l,r",
        [pointer.to(tl.int64), mask.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )

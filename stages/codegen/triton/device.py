"""What a kernel says to the device besides computing: waits of programmatic dependent launch, and prefetches.

Settled as `libm` is: by TRITON_INTERPRET when the module is imported. The interpreter runs one launch after the other
and has no caches, so there each of them does nothing.
"""

from __future__ import annotations

from triton import knobs

if knobs.runtime.interpret:
    from stages.codegen.triton.device_interpreted import gdc_launch_dependents, gdc_wait, prefetch
else:
    from stages.codegen.triton.device_inline import gdc_launch_dependents, gdc_wait, prefetch

__all__ = ["gdc_launch_dependents", "gdc_wait", "prefetch"]

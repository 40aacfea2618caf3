"""The mathematical library that generated kernels call: the device's, or its stand-in under Triton's interpreter.

A generated source says `libm.exp(x)` and runs in both. Which one it gets is settled as `triton.jit` settles it: by
TRITON_INTERPRET when the module is imported.

On a device these are NVIDIA's libdevice functions, the ones that nvcc compiles eager's kernels with, so their errors
are eager's: `tl.exp` and its like are faster and off by more. Kernels are compiled with `enable_reflect_ftz=False`,
without which libdevice flushes denormals to zero and eager does not.
"""

from __future__ import annotations

from triton import knobs

if knobs.runtime.interpret:
    from stages.codegen.triton.libm_interpreted import *  # noqa: F403
else:
    from stages.codegen.triton.libm_device import *  # noqa: F403

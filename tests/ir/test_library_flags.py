"""Settings of torch's libraries: set for a while, in whichever of torch's ways the process is set."""

from __future__ import annotations

import subprocess
import sys

import pytest

PREPARED = {
    "default": "",
    "older": "torch.set_float32_matmul_precision('high'); torch.backends.cudnn.allow_tf32 = False",
    "newer": "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "newer, one of two": "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "newer, everywhere": "torch.backends.fp32_precision = 'tf32'",
    "frozen": "torch.backends.disable_global_flags()",
}

PROGRAM = """
import torch
{prepared}

def state():
    backends = torch.backends
    places = (backends.cuda.matmul, backends.mkldnn.matmul, backends.mkldnn.conv, backends.cudnn.conv,
              backends.cudnn.rnn, backends.cudnn, backends)
    told = []
    cudnn = backends.cudnn
    for read in (torch.get_float32_matmul_precision, lambda: cudnn.allow_tf32, lambda: cudnn.benchmark):
        try:
            told.append(read())
        except RuntimeError:
            told.append("refused")
    return [place.fp32_precision for place in places] + told

from stages.ir.library_flags import cudnn_benchmark, float32_products, tf32_convolutions, tf32_matmuls
before = state()
for tf32 in (False, True, False):
    with float32_products(tf32), cudnn_benchmark(True):
        assert tf32_matmuls() is tf32 and tf32_convolutions() is tf32, tf32
        assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")
        assert torch.backends.cudnn.allow_tf32 is tf32
        assert torch.backends.cudnn.benchmark
    assert state() == before, (state(), before)
"""


@pytest.mark.parametrize("prepared", PREPARED.values(), ids=PREPARED)
def test_set_for_a_while_and_put_back(prepared: str) -> None:
    program = PROGRAM.format(prepared=prepared)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]

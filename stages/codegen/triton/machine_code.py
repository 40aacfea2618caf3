"""Compiling generated modules to machine code, and what the assembler says it needs. No GPU is needed here.

Comes in: a generated module and a target. Goes out: Triton's compiled kernel, or a table of resources.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from stages.codegen.triton.modules import cache_folder, load_module
from stages.codegen.triton.printer import print_kernel
from stages.ir.kernel import IRError, Kernel
from stages.ir.schedule import Schedule

# Vector accesses need addresses that are a multiple of this many bytes. PyTorch's allocator and the arena give more;
# a view of a user's tensor may give less.
ALIGNMENT = 16

_ASSEMBLER = {
    "registers": r"Used (\d+) registers",
    "stack": r"(\d+) bytes stack frame",
    "spill_stores": r"(\d+) bytes spill stores",
    "spill_loads": r"(\d+) bytes spill loads",
}


def compile_module(module: ModuleType, target: GPUTarget, aligned: bool) -> Any:
    """The entry of a generated module as Triton's `CompiledKernel` for `target`, from Triton's cache if it is there.

    aligned   every address will be a multiple of `ALIGNMENT`
    """
    signature: dict[str, str] = module.SIGNATURE
    divisible = [["tt.divisibility", ALIGNMENT]]
    attributes = {(position,): divisible for position in range(len(signature))} if aligned else {}
    source = ASTSource(getattr(module, module.ENTRY), signature, {}, attributes)
    return triton.compile(source, target=target, options=dict(module.OPTIONS))


def check_machine_code(kernel: Kernel, schedule: Schedule, capability: int) -> dict[str, int]:
    """Compile for a GPU of `capability` (80, 90, ...) and say what the machine code needs.

    Returns `registers` a thread, `stack`, `spill_stores` and `spill_loads` in bytes a thread, and `shared` in bytes a
    program. A stack without spills is an array of the mathematical library. Raises what the printer and Triton raise,
    and `IRError` where Triton is set to interpret.
    """
    if knobs.runtime.interpret:
        raise IRError("TRITON_INTERPRET is set: Triton interprets kernels and compiles none")
    module = load_module(print_kernel(kernel, schedule), cache_folder(""))
    compiled = compile_module(module, GPUTarget("cuda", capability, 32), aligned=True)
    return {**assembler_report(compiled.asm["ptx"]), "shared": int(compiled.metadata.shared)}


def assembler_report(ptx: str) -> dict[str, int]:
    """What `ptxas` says that `ptx` needs: the entries of `_ASSEMBLER`, in registers and bytes."""
    architecture = re.search(r"\.target (\w+)", ptx)
    assert architecture is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [knobs.nvidia.ptxas.path, "-v", "--fmad=false", f"--gpu-name={architecture[1]}", str(path), "-o"]
        report = subprocess.run([*command, f"{path}.cubin"], check=True, capture_output=True, text=True)
    text = report.stderr + report.stdout
    found = {name: re.search(pattern, text) for name, pattern in _ASSEMBLER.items()}
    return {name: int(match[1]) if match else 0 for name, match in found.items()}

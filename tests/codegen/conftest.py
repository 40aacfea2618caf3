"""Fixtures of the codegen tests: one cache folder a session, and a build of many kernels at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from stages.codegen import CodegenConfig, CompiledKernel, compile_kernels
from stages.ir.kernel import Kernel
from stages.ir.schedule import Schedule

Build = Callable[[Sequence[tuple[Kernel, Schedule]]], list[CompiledKernel]]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> CodegenConfig:
    # -O1 halves the time that the suite spends in the compiler; the code that is tested is the same.
    return CodegenConfig(flags=("-O1", "-march=native"), cache_dir=str(tmp_path_factory.mktemp("cache")), debug=True)


@pytest.fixture(scope="session")
def build(config: CodegenConfig) -> Build:
    return lambda work: compile_kernels(work, torch.device("cpu"), config)

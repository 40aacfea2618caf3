"""The compile cache and the compiler: hits, damage, concurrency, and what the user reads when something is missing."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import re
import stat
from pathlib import Path

import pytest
import torch

from stages.codegen import CodegenConfig, compile_kernels, run
from stages.codegen.cpp import build as building
from stages.codegen.cpp import compiler
from stages.ir.errors import ConfigError, UserError
from stages.ir.program import BufferSpec, Launch, Program
from stages.ir.schedule import Schedule
from tests.codegen.kernels import column_sum, softmax
from tests.codegen.kernels import run as run_kernel

CPU = torch.device("cpu")
WORK = [(softmax(3, 5), Schedule(vector_width=4))]


@pytest.fixture
def config(tmp_path) -> CodegenConfig:
    return CodegenConfig(flags=("-O1",), cache_dir=str(tmp_path / "cache"))


def entries(config: CodegenConfig) -> list[Path]:
    return sorted(Path(config.cache_dir).rglob("*.so"))


def works(config: CodegenConfig) -> bool:
    """Whether WORK was in the cache; its values are right in any case."""
    (kernel,) = compile_kernels(WORK, CPU, config)
    x = torch.randn(3, 5)
    torch.testing.assert_close(run_kernel(kernel, [x])[0].view(3, 5), x.softmax(1))
    return kernel.cached


def test_a_second_build_compiles_nothing(config):
    assert not works(config)
    assert works(config)
    assert len(entries(config)) == 1
    assert works(dataclasses.replace(config, compiler=compiler.find_compiler(config).path))


def test_flags_and_source_make_another_entry(config):
    assert not works(config)
    assert not works(dataclasses.replace(config, flags=("-O1", "-mno-avx2")))
    compile_kernels([(softmax(3, 6), WORK[0][1])], CPU, config)
    assert len(entries(config)) == 3


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_a_damaged_entry_is_built_again(config, damage):
    library = building.build_library("", config)
    content = library.path.read_bytes()
    broken = {"cut": content[: len(content) // 2], "changed": content[:-100] + b"x" + content[-99:], "empty": b""}[
        damage
    ]
    fresh = library.path.with_name("fresh.so")
    fresh.write_bytes(broken)
    os.replace(fresh, library.path)
    assert not building.build_library("", config).cached
    assert library.path.read_bytes() == content
    assert building.build_library("", config).cached


def test_processes_build_the_same_at_once(config):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(works, [config] * 2)
    assert works(config)
    assert len(entries(config)) == 1
    assert not list(Path(config.cache_dir).rglob("build-*"))


def test_no_compiler_is_one_clear_sentence(config, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match=r"no C\+\+ compiler \(g\+\+, clang\+\+, c\+\+\)") as caught:
        works(config)
    assert "codegen.compiler=" in caught.value.mend
    with pytest.raises(UserError, match=r"no C\+\+ compiler 'icpx'"):
        works(dataclasses.replace(config, compiler="icpx"))
    monkeypatch.setenv("CXX", "mycc")
    with pytest.raises(UserError, match=r"no C\+\+ compiler 'mycc'"):
        works(config)
    assert not Path(config.cache_dir).exists()


def test_a_compiler_that_does_not_run_is_named(config, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(UserError, match="broken' does not run"):
        works(dataclasses.replace(config, compiler=str(broken)))


def test_refused_code_shows_the_message_and_keeps_the_source(config):
    with pytest.raises(UserError, match="refused generated code") as caught:
        building.build_library("int broken() { return missing; }", config)
    assert "'missing' was not declared" in str(caught.value) or "missing" in str(caught.value)
    kept = re.search(r"kept in (\S+\.cpp)", caught.value.mend)
    assert kept and "return missing" in Path(kept.group(1)).read_text()
    assert not entries(config)


def test_a_cache_folder_that_cannot_be_made_is_named(config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be built in") as caught:
        works(dataclasses.replace(config, cache_dir=str(tmp_path / "file")))
    assert "codegen.cache_dir" in caught.value.mend


def test_flags_that_change_results_are_refused():
    with pytest.raises(ConfigError, match="-ffast-math"):
        CodegenConfig(flags=("-O3", "-ffast-math"))


def test_the_default_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert building.cache_folder(CodegenConfig()) == tmp_path / "torchweld" / "kernels"


def test_kernels_share_torchs_openmp_runtime(config):
    assert not works(config)
    maps = Path("/proc/self/maps").read_text()
    assert len(set(re.findall(r"\s(/\S*/lib(?:gomp|iomp5|omp)[-.\w]*\.so\S*)$", maps, re.MULTILINE))) == 1


def test_run_builds_each_kernel_of_a_program_once(config):
    rows, columns = softmax(3, 5), column_sum(64, 5)
    specs = [
        BufferSpec(name, torch.float32, size, role)
        for name, size, role in (
            ("a", 15, "user"),
            ("b", 15, "arena"),
            ("c", 15, "output"),
            ("d", 320, "user"),
            ("e", 5, "output"),
        )
    ]
    steps = (
        Launch(rows, ("a", "b")),
        Launch(dataclasses.replace(rows, name="again"), ("b", "c")),
        Launch(rows, ("b", "c"), Schedule(vector_width=4)),
        Launch(columns, ("d", "e")),
    )
    program = Program(CPU, (), {spec.name: spec for spec in specs}, steps, ())
    compiled = run(program, config)
    assert len(compiled.kernels) == 3 and not compiled.cached and compiled.seconds > 0
    assert run(program, config).cached
    assert set(compiled.sources) == {kernel.file_name for kernel in compiled.kernels.values()}
    assert compiled.kernel_of(steps[0]) is compiled.kernel_of(steps[1])
    assert compiled.kernel_of(steps[2]).schedule == Schedule(vector_width=4)
    assert compiled.kernel_of(steps[3]).schedule.unroll == 4  # lanes lie across the rows


def test_a_device_without_printer_is_named():
    with pytest.raises(UserError, match="device 'meta'"):
        compile_kernels(WORK, torch.device("meta"), CodegenConfig())

"""What is the same job, what is kept, and files that are whole or not there."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.compose import compose
from pipeline.config import Config, RecipeConfig
from pipeline.configure import configuration
from pipeline.files import write_whole
from pipeline.sweep import identity, record
from pipeline.sweep.identity import identity_of
from pipeline.sweep.record import JobRecord
from stages.ir.errors import ConfigError

VERSIONS = {"torch": "2.14.1"}


def config_of(*overrides: str) -> Config:
    return configuration(compose(overrides), overrides)[0]


@pytest.fixture(scope="module")
def config() -> Config:
    return config_of()


def test_where_files_go_and_how_jobs_are_run_does_not_make_another_job(config: Config) -> None:
    elsewhere = replace(
        config,
        outputs="elsewhere",
        job="other",
        tracking=replace(config.tracking, enabled=False),
        sweep=replace(config.sweep, jobs=4, rerun="all"),
    )
    assert identity_of(config, "cpu", VERSIONS) == identity_of(elsewhere, "cpu", VERSIONS)


def test_config_device_versions_and_code_make_another_job(config: Config, monkeypatch) -> None:
    keys = {
        identity_of(config, "cpu", VERSIONS).key,
        identity_of(replace(config, seed=1), "cpu", VERSIONS).key,
        identity_of(config, "cuda:0: NVIDIA H200", VERSIONS).key,
        identity_of(config, "cpu", {"torch": "2.13.0"}).key,
    }
    monkeypatch.setattr(identity, "own_code", lambda: "changed")
    keys.add(identity_of(config, "cpu", VERSIONS).key)
    assert len(keys) == 5


def test_the_users_source_and_the_recipes_content_count(config: Config, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    custom = replace(config.model, library="custom", path="my_models:make", architecture=None, pretrained=None)
    recipe = tmp_path / "recipe.yaml"
    mine = replace(config, model=custom, recipe=RecipeConfig(str(recipe)))
    keys = set()
    for file in ("my_models.py", "layers_of_mine.py", "recipe.yaml"):
        for text in ("# one", "# two"):
            for other in ("my_models.py", "layers_of_mine.py", "recipe.yaml"):
                (tmp_path / other).touch()
            (tmp_path / file).write_text(text)
            keys.add(identity_of(mine, "cpu", VERSIONS).key)
    assert len(keys) == 6
    assert identity_of(mine, "cpu", VERSIONS).key in keys
    copy = recipe.with_name("copy.yaml")
    copy.write_text(recipe.read_text())
    assert identity_of(replace(mine, recipe=RecipeConfig(str(copy))), "cpu", VERSIONS).key in keys
    assert identity_of(replace(mine, recipe=RecipeConfig(str(copy), True)), "cpu", VERSIONS).key not in keys


def test_what_is_kept() -> None:
    def kept(status: str, rerun: str) -> bool:
        return record.to_keep(JobRecord(0, "a", (), "k", status=status), rerun)

    assert [kept("passed", rerun) for rerun in ("failed", "all", "none")] == [True, False, True]
    assert [kept("unvalidated", rerun) for rerun in ("failed", "all", "none")] == [True, False, True]
    for status in ("failed", "error", "crashed", "timeout", "memory"):
        assert [kept(status, rerun) for rerun in ("failed", "all", "none")] == [False, False, True]
    assert not kept("interrupted", "none")
    assert not record.to_keep(None, "none")


def test_a_right_result_wins_over_a_later_failure(tmp_path: Path) -> None:
    for number, (status, started) in enumerate([("passed", 1.0), ("passed", 2.0), ("crashed", 3.0)]):
        folder = tmp_path / "day" / f"{number}-sweep" / "0-a"
        folder.mkdir(parents=True)
        record.write(JobRecord(0, "a", ("seed=1",), "k", status=status, started=started, folder=str(folder)))
    (tmp_path / "day" / "0-sweep" / "1-b").mkdir()
    (tmp_path / "day" / "0-sweep" / "1-b" / "job.json").write_text('{"half a re')
    found = record.earlier(tmp_path)
    assert list(found) == ["k"] and found["k"].started == 2.0
    assert record.read(Path(found["k"].folder) / "job.json") == found["k"]
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert Path(record.earlier(moved)["k"].folder).is_relative_to(moved)


def test_the_tail_is_the_end_or_where_it_hung(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("".join(f"line {number}\n\n" for number in range(100)))
    assert record.tail(log, 2) == ("line 98", "line 99")
    frames = [f'  File "f.py", line {number} in g' for number in range(50)]
    log.write_text("\n".join(["before", "Current thread 0x1 (most recent call first):", *frames]))
    assert record.tail(log, 2) == ("Current thread 0x1 (most recent call first):", frames[0])
    assert record.tail(log, 0) == ()
    assert record.tail(tmp_path / "none", 5) == ()


@pytest.mark.parametrize("fails", ["write", "fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch, fails: str) -> None:
    path = tmp_path / "results.json"
    write_whole(path, "before")

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if fails == "write":
        monkeypatch.setattr("pipeline.files.open", _full_file, raising=False)
    elif fails == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "after")
    monkeypatch.undo()
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["results.json"]
    write_whole(path, "after")
    assert path.read_text() == "after"


def _full_file(*arguments, **more):
    file = open(*arguments, **more)  # noqa: SIM115

    def write(text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file.write = write
    return file


def test_values_out_of_range_name_the_key() -> None:
    for override, key in (
        ("sweep.jobs=0", "sweep.jobs"),
        ("sweep.timeout_seconds=0", "sweep.timeout_seconds"),
        ("sweep.memory_mib=0", "sweep.memory_mib"),
        ("sweep.rerun=some", "sweep.rerun"),
    ):
        with pytest.raises(ConfigError) as error:
            config_of(override)
        assert error.value.key == key

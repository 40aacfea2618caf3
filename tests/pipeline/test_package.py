"""What an installation carries: every file that the program reads beside its code."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it where Python has none

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_data_file_is_package_data() -> None:
    declared = PROJECT["tool"]["setuptools"]["package-data"]
    for package in ("conf", "pipeline", "stages"):
        folder = ROOT / package
        carried = {file for pattern in declared.get(package, []) for file in folder.glob(pattern)}
        present = {file for file in folder.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
        assert present == carried


def test_the_entry_points_are_there() -> None:
    from importlib import import_module

    points = {**PROJECT["project"]["scripts"], **PROJECT["project"]["entry-points"]["torch_dynamo_backends"]}
    for target in points.values():
        module, _, name = target.partition(":")
        assert callable(getattr(import_module(module), name))

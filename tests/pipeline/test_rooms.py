"""Imports go one way: a stage knows the IR, and no other stage."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "stages"
SHARED = "ir"


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in found if name.split(".")[0] in ("stages", "pipeline") and "." in name}


def test_a_stage_imports_no_other_stage():
    wrong = {}
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0]
        if others := imported(path) - {room, SHARED}:
            wrong[str(path.relative_to(ROOT))] = others
    assert not wrong

"""The other parts of scripts/opinfo.py: copies of calls, lost processes, sums and exceptions."""

from __future__ import annotations

import re

import pytest
import torch

from scripts import opinfo
from scripts.operators import pool
from scripts.operators.cases import Call, operators
from scripts.operators.table import Exceptions, failed, failures, read_exceptions, summary
from scripts.operators.task import Task
from tests.scripts.operator_work import record


def call(*args, **kwargs):
    return Call(0, torch.add, args, kwargs)


def test_a_copy_has_the_layout_and_the_sharing_of_the_original():
    base = torch.arange(12.0)
    view, overlapping = base[2:8].view(2, 3).t(), base.as_strided((3, 3), (1, 1))
    one, two = call(view, overlapping).copied().args
    assert one.stride() == view.stride() and one.storage_offset() == 2
    assert torch.equal(one, view) and torch.equal(two, overlapping)
    one.fill_(-1)
    assert (two == -1).any() and not (base == -1).any()


def test_a_copy_of_a_conjugate_view_is_one():
    value = torch.tensor([1 + 2j]).conj()
    (copy,) = call(value).copied().args
    assert copy.is_conj() and torch.equal(copy, value)


def test_a_wide_call_is_in_float64_with_its_dtypes():
    half, whole = torch.ones(2).half(), torch.ones(2, dtype=torch.int32)
    wide = call(half, [whole, half], dtype=torch.bfloat16).widened()
    assert wide.args[0].dtype is torch.float64 and wide.args[1][0].dtype is torch.int32
    assert wide.kwargs["dtype"] is torch.float64


def test_inputs_are_off_by_no_more_than_they_were_told():
    ones = torch.ones(1000)
    (off,) = call(ones).widened(off=0.5).args
    error = (off - 1).abs().max() / torch.finfo(torch.float32).eps
    assert 0.4 < error <= 0.5


WRONG = {"sample": 2, "kind": "differs", "reason": "off", "call": "(x)"}


@pytest.mark.parametrize("together", [1, 3])
def test_a_crash_or_a_hang_loses_one_task(monkeypatch, together):
    monkeypatch.setattr(pool, "WORK", "tests.scripts.operator_work:work")
    monkeypatch.setattr(pool, "WARM", ())
    tasks = [Task(name, "float32") for name in ("add", "crash", "mul", "hang", "sub")]
    found = {entry["op"]: entry["failures"] for entry in pool.run_all(tasks, 2, 1.0, together)}
    assert [found[name] for name in ("add", "mul", "sub")] == [[], [], []]
    assert found["crash"][0]["kind"] == "crash" and "at crash here" in found["crash"][0]["reason"]
    assert found["hang"][0]["kind"] == "timeout"


def test_the_table_counts_operators_by_dtype():
    exceptions = Exceptions({}, {}, ((re.compile("mul"), ("float32",), "eager is wrong"),))
    records = [record(), record("mul", failures=[WRONG]), record("mul", "int64", failures=[WRONG])]
    table = summary(records, exceptions).splitlines()
    assert table[2:] == [
        "| float32 | 2 | 1 | 1 | 0 | 2 | 6 | 0 | 2 |",
        "| int64 | 1 | 0 | 0 | 1 | 1 | 3 | 0 | 1 |",
        "| all | 3 | 1 | 1 | 1 | 3 | 9 | 0 | 3 |",
    ]
    assert [failed(entry, exceptions) for entry in records] == [False, False, True]
    assert failures(records, exceptions).splitlines() == [
        "differs: 1 samples",
        "mul int64 (1 of 3) differs: off [2] (x)",
    ]


def test_every_exception_has_a_reason_and_names_an_operator():
    names = operators()
    exceptions = read_exceptions()
    assert all(reason for *_, reason in exceptions.differs)
    assert all(reason and name in names for name, reason in exceptions.uninitialised.items())
    assert all(positions and reason and name in names for name, (positions, reason) in exceptions.unwritten.items())
    assert all(any(pattern.fullmatch(name) for name in names) for pattern, *_ in exceptions.differs)


def test_operators_that_nobody_knows_are_refused(capsys):
    assert opinfo.main(["--ops", "no_such_operator"]) == 2
    assert "no operator" in capsys.readouterr().err

"""The whole of it: a hundred graphs agree with eager; a worker that dies is a finding, not the end."""

import json
import subprocess
import sys

import pytest

from scripts import fuzz
from scripts.fuzzing import campaign
from scripts.fuzzing.campaign import Plan, run


def test_a_quick_run_finds_nothing(tmp_path):
    command = [sys.executable, "-m", "scripts.fuzz", "--quick", "--outputs", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "fuzz" / "0" / "summary.json").read_text())
    assert sum(summary["graphs"].values()) == 100
    assert summary["findings"] == {}


def test_a_crash_is_a_finding_and_the_rest_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "WORK", "tests.fuzzing.doomed:work")
    plan = Plan(seed=3, graphs=6, minutes=None, shares=(("interpreted", 1.0),), batch=3)
    summary = run(plan, tmp_path, lambda line: None)
    assert [(finding.kind, finding.number) for finding in summary.findings] == [("crash", 1)]
    assert summary.total == 6
    assert "def program" in (tmp_path / "1.py").read_text()


def test_a_worker_that_loses_its_gpu_says_whose_fault_it_was(tmp_path, monkeypatch):
    """Cases before and after in the same batch are judged all the same."""
    monkeypatch.setattr(campaign, "WORK", "tests.fuzzing.doomed:losing")
    plan = Plan(seed=3, graphs=6, minutes=None, shares=(("interpreted", 1.0),), batch=6)
    summary = run(plan, tmp_path, lambda line: None)
    assert [(finding.kind, finding.number) for finding in summary.findings] == [("crash", 2), ("value", 4)]
    assert (summary.total, summary.asserted) == (6, 1)
    assert "1 of them compare nothing" in summary.text()


def test_a_finding_before_a_crash_in_the_same_batch_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "WORK", "tests.fuzzing.doomed:differing_then_dying")
    plan = Plan(seed=3, graphs=3, minutes=None, shares=(("interpreted", 1.0),), batch=3)
    summary = run(plan, tmp_path, lambda line: None)
    assert [(finding.kind, finding.number) for finding in summary.findings] == [("value", 0), ("crash", 1)]


def test_engines_and_limits():
    options = fuzz._options(["--graphs", "7", "--interpreted", "0.5", "--dynamo", "0.1"])
    assert dict(fuzz._shares(options)) == {"aot": pytest.approx(0.4), "interpreted": 0.5, "dynamo": 0.1}
    assert fuzz._options([]).graphs == 1000
    assert fuzz._options(["--minutes", "2"]).graphs is None
    with pytest.raises(SystemExit):
        fuzz._options(["--triton-interpreter", "--device", "cuda"])

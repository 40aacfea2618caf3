"""The whole of it: a hundred graphs agree with eager; a worker that dies is a finding, not the end."""

import json
import os
import signal

import pytest

from scripts import fuzz
from scripts.fuzzing import campaign
from scripts.fuzzing.campaign import Plan, run
from scripts.fuzzing.case import Case


def test_a_quick_run_finds_nothing(tmp_path):
    assert fuzz.main(["--quick", "--outputs", str(tmp_path)]) == 0
    summary = json.loads((tmp_path / "fuzz" / "0" / "summary.json").read_text())
    assert sum(summary["graphs"].values()) == 100
    assert summary["findings"] == {}


def interpreted(**changes):
    return Plan(**{"seed": 3, "graphs": 6, "minutes": None, "shares": (("interpreted", 1.0),), "batch": 3, **changes})


@pytest.fixture
def fault_of(monkeypatch):
    """fault_of(number, deed): the worker does `deed` when it is about to judge that case of seed 3."""

    def inject(number, deed):
        text = campaign.generate(3, number, 12).text()
        judge = campaign.judge

        def judging(case: Case, *arguments):
            if case.text() == text:
                deed()
            return judge(case, *arguments)

        monkeypatch.setattr(campaign, "judge", judging)

    return inject


def test_a_crash_is_a_finding_and_the_rest_goes_on(tmp_path, fault_of):
    fault_of(1, lambda: os.kill(os.getpid(), signal.SIGKILL))
    summary = run(interpreted(), tmp_path, lambda line: None)
    assert [(finding.kind, finding.number) for finding in summary.findings] == [("crash", 1)]
    assert summary.total == 6
    assert "def program" in (tmp_path / "1.py").read_text()


def test_engines_and_limits():
    options = fuzz._options(["--graphs", "7", "--interpreted", "0.5", "--dynamo", "0.1"])
    assert dict(fuzz._shares(options)) == {"aot": pytest.approx(0.4), "interpreted": 0.5, "dynamo": 0.1}
    assert fuzz._options([]).graphs == 1000
    assert fuzz._options(["--minutes", "2"]).graphs is None
    with pytest.raises(SystemExit):
        fuzz._options(["--triton-interpreter", "--device", "cuda"])

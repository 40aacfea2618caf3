"""What is shown of a sweep: the table, the page, the time left."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.commands.compare import main as compare
from pipeline.report.compare import against, differences, points, render_page
from pipeline.report.record import write_results
from pipeline.report.summary import Summary, read_summary
from pipeline.sweep import table
from pipeline.sweep.board import Board, duration, seconds_left
from pipeline.sweep.record import JobRecord, write
from stages.benchmark.statistics import Ratio, ratio_of_independent_medians
from stages.ir.errors import UserError
from tests.report.samples import record


def job(number: int, tmp_path: Path, status: str, *overrides: str, **more) -> JobRecord:
    folder = tmp_path / f"{number}-bert"
    folder.mkdir()
    made = JobRecord(number, "bert-fp32", ("model=bert", *overrides), f"key{number}", status=status, **more)
    made = replace(made, folder=str(folder), started=1.0, seconds=65.0)
    if status in ("passed", "failed"):
        results = record(passed=status == "passed")
        results.config["seed"] = number
        write_results(results, folder)
    write(made)
    return made


@pytest.fixture
def jobs(tmp_path: Path) -> list[JobRecord]:
    return [
        job(0, tmp_path, "passed", "seed=0"),
        job(1, tmp_path, "failed", "seed=1", reason="relative error 0.003 exceeds 1e-06"),
        job(2, tmp_path, "crashed", "seed=2", reason="segmentation fault (SIGSEGV)", log_tail=("in <forward>", "[x]")),
        replace(job(3, tmp_path, "passed", "seed=3"), kept=True),
        JobRecord(4, "bert-fp32", ("model=bert", "seed=4"), "key4"),
    ]


def shown(renderable) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    return console.export_text()


def test_the_table_has_every_job_and_no_speed_for_a_wrong_one(jobs: list[JobRecord]) -> None:
    rows = table.rows_of(jobs)
    assert [row.label for row in rows] == [f"seed={number}" for number in range(5)]
    cells = [table.cells(row) for row in rows]
    assert cells[0] == ["0", "seed=0", "passed", "10.00", "2.00 [1.90, 2.10]", "2.00 ×", "2.0 MiB", "12.5 s", "65 s"]
    assert cells[1][2:5] == ["failed", "–", "–"]
    assert cells[3][2] == "passed (kept)"
    text = shown(table.render(rows, "a sweep"))
    assert "[2] seed=2: crashed: segmentation fault (SIGSEGV)" in text
    assert "| in <forward>" in text and "| [x]" in text
    assert "5 jobs (1 kept): 2 passed, 1 failed, 1 crashed, 1 not run" in text


def test_the_files_have_the_same_rows(jobs: list[JobRecord], tmp_path: Path) -> None:
    rows = table.rows_of(jobs)
    table.write(rows, tmp_path, {"id": "0123"})
    values = json.loads((tmp_path / "sweep.json").read_text())
    assert [each["status"] for each in values["jobs"]] == ["passed", "failed", "crashed", "passed", "not run"]
    assert values["jobs"][0]["figures"]["speedup"] == {"value": 2.0, "low": 1.9, "high": 2.1}
    markdown = (tmp_path / "sweep.md").read_text()
    assert markdown.count("\n| ") == 1 + len(jobs) and "## [2] seed=2: crashed" in markdown
    assert [row.record for row in table.read_rows(tmp_path)] == jobs
    with pytest.raises(UserError, match=r"sweep\.json"):
        table.read_rows(tmp_path / "nowhere")


def test_labels_without_what_all_jobs_share() -> None:
    assert table.labels_of([["a=1", "b=m\\:f"], ["a=1", "b=2"]], ["x", "x"]) == ["b=m:f", "b=2"]
    assert table.labels_of([["a=1"]], ["x"]) == ["x"]


class Checked(HTMLParser):
    """Tags that are opened are closed; nothing is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attributes):
        assert not any(name in ("src", "href") and "//" in (value or "") for name, value in attributes)
        if tag not in ("meta", "br", "rect", "line", "circle", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        if tag not in ("rect", "line", "circle", "polyline"):
            assert self.open.pop() == tag


def test_the_page_is_whole_and_escaped(jobs: list[JobRecord], tmp_path: Path) -> None:
    (tmp_path / "0-bert" / "report.html").write_text("")
    table.write(table.rows_of(jobs), tmp_path, {})
    text = (tmp_path / "report.html").read_text()
    parser = Checked()
    parser.feed(text)
    assert parser.open == []
    assert 'href="0-bert/report.html"' in text and "in &lt;forward&gt;" in text
    assert "2 of 5 right" in text and "segmentation fault" in text and "<polyline" in text
    assert "http://" not in text and "https://" not in text


def run(name: str, latency: float, error: float, **more) -> Summary:
    return Summary(name, "passed", model="bert", latency_ms=latency, error_ratio=error, **more)


def test_joined_are_the_runs_that_no_other_of_their_model_beats() -> None:
    runs = [run("a", 1.0, 3.0), run("b", 2.0, 1.0), run("c", 2.0, 3.0), run("d", 2.5, 0.5), run("e", 1.0, 3.0)]
    runs += [replace(run("f", 9.0, 9.0), model="vit"), replace(run("g", 0.1, 0.1), status="failed")]
    placed = points(runs, lambda each: each.latency_ms, lambda each: each.error_ratio)
    assert [(number, point.name, point.group) for number, point in placed if point.best] == [
        *((0, "a", "bert"), (1, "b", "bert"), (3, "d", "bert"), (4, "e", "bert")),
        (5, "f", "vit"),
    ]


def test_many_points_have_the_numbers_of_the_table(tmp_path: Path) -> None:
    runs = [run(f"precision=p{place}", 1.0 + place, 9.0 - place % 5) for place in range(12)]
    runs = [replace(each, settings={"precision.mode": each.name[-2:], "fusion.rules": "x" * 99}) for each in runs]
    runs[0] = replace(runs[0], settings={"precision.mode": "p0", "fusion.rules": "y" * 99})
    text = render_page("many", runs, "", tmp_path)
    assert [part.partition("</li>")[0] for part in text.split("<li>")[1:]] == [
        f"{place}: precision=p{place}" for place in range(5)
    ]
    assert ">4</text>" in text and ">5</text>" not in text and "precision=p11: 12 median ms" in text
    assert ">precision.mode<" not in text, "the names say it"
    assert "y" * 40 + "…" in text and "y" * 41 not in text


def test_runs_are_set_against_each_other_only_where_they_did_the_same() -> None:
    samples = {"samples_ms": (1.0, 1.1, 0.9) * 10, "device": "cpu", "settings": {"model.name": "bert", "seed": 0}}
    first = run("a", 1.0, 1.0, **samples)
    fast = replace(first, samples_ms=(0.5, 0.55, 0.45) * 10, settings={"model.name": "bert", "seed": 1})
    ratio = against(first, fast)
    assert ratio is not None and ratio.value == pytest.approx(2.0) and ratio.low > 1.5
    assert against(first, replace(fast, settings={"model.name": "vit"})) is None
    assert against(first, replace(fast, device="cuda")) is None
    assert against(first, replace(fast, status="failed")) is None
    assert differences([first, fast]) == ["seed"]


def test_the_interval_of_independent_runs_holds_the_ratio_and_shrinks() -> None:
    few, many = [1.0, 1.2, 0.8] * 3, [1.0, 1.2, 0.8] * 300
    wide, narrow = (ratio_of_independent_medians(each, each) for each in (few, many))
    assert isinstance(wide, Ratio) and wide.low <= 1.0 <= wide.high
    assert narrow.high - narrow.low < wide.high - wide.low


def test_a_loaded_run_is_marked() -> None:
    text = render_page("t", [run("a", 1.0, 1.0, load="other processes kept 2.0 CPUs busy")], "", Path("/"))
    assert "1.000*" in text and "Timed under load" in text


def test_compare_runs_and_sweeps(jobs: list[JobRecord], tmp_path: Path, capsys) -> None:
    table.write(table.rows_of(jobs), tmp_path, {})
    page = tmp_path / "page.html"
    assert compare([str(tmp_path), str(tmp_path / "0-bert"), "--output", str(page)]) == 0
    out = capsys.readouterr().out
    assert "seed=2" in out and "crashed" in out and "bert-fp32" in out
    assert "Pareto" not in out and page.read_text().count("<tr>") >= 7
    assert compare([str(tmp_path / "nothing")]) == 2
    assert "results.json cannot be read" in capsys.readouterr().err


def test_a_results_file_of_another_kind_is_told(tmp_path: Path) -> None:
    for text in ("[]", "{}", "no json", '{"name": "a", "status": "passed", "benchmark": {"engines": [3]}}'):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(UserError, match="is not the result of a run"):
            read_summary(tmp_path)


def test_progress(jobs: list[JobRecord]) -> None:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with Board(console, total=5, kept=1, at_once=2) as board:
        assert board.summary() == "1 of 5 done, 0 running, 0 failed"
        for number in (0, 1):
            board.started(jobs[number])
        board.ended(jobs[1])
        assert board.summary() == "2 of 5 done, 1 running, 1 failed, about 98 s left"
    assert "[1] bert-fp32 failed after 65.0 s: relative error 0.003" in console.export_text()
    assert seconds_left([], 3, 1) is None and seconds_left([10.0, 20.0], 4, 2) == 30.0
    assert [duration(each) for each in (42.4, 600, 11520)] == ["42 s", "10 min", "3.2 h"]

"""The three forms of the report: what they must show, and what a failed run must not."""

import io
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from pipeline.report import RunRecord, record_of, render, render_html, show, write, write_record
from pipeline.report.charts import Bar, bars
from pipeline.report.record import flatten, plain
from tests.report.samples import benchmark, program, record, validation


def terminal_of(of):
    console = Console(width=200, highlight=False, no_color=True, force_terminal=False, record=True, file=io.StringIO())
    console.print(render(of))
    return console.export_text()


def texts(of):
    """Everything that a reader of the run could see."""
    return terminal_of(of), render_html(of), json.dumps(of.to_dict())


class Addresses(HTMLParser):
    """Everything that a browser would fetch or follow."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]


def test_the_page_takes_nothing_from_the_network():
    page = render_html(record())
    addresses = Addresses()
    addresses.feed(page)
    assert addresses.found and all(value.startswith("data:image/svg+xml;base64,") for value in addresses.found)
    assert not re.search(r"url\(|@import|<script|<link|<iframe", page)


def test_the_page_is_well_formed_and_escapes():
    class Balanced(HTMLParser):
        stack: list = []  # noqa: RUF012

        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "img", "br", "rect", "line"):
                self.stack.append(tag)

        def handle_endtag(self, tag):
            if tag not in ("rect", "line"):
                assert self.stack.pop() == tag

    parser = Balanced()
    parser.feed(render_html(record()))
    assert parser.stack == []
    assert "y = gelu(q &lt; 1)" in render_html(record()) and "no &lt;compiler&gt;" in render_html(record())


def test_a_run_that_passed_shows_its_speed_everywhere():
    for text in texts(record())[:2]:
        assert "2.00 [1.90, 2.10]" in text and "PASSED" in text and "12.5 s" in text
        assert "no &lt;compiler&gt;" in text or "no <compiler>" in text
    assert json.loads(texts(record())[2])["benchmark"]["engines"][1]["speedup"]["value"] == 2.0


def test_a_run_that_failed_shows_no_speed_anywhere():
    for text in texts(record(passed=False)):
        assert "failed" in text.lower() and "relative error 0.003 exceeds 1e-06" in text
        assert "the first wrong value is 'gelu'" in text or "the first wrong value is &#x27;gelu&#x27;" in text
        assert not re.search(
            r"speed-?up\"?: \{|median ms|2\.00 \[|latency_ms|items/s|\"median_ms\": \d|roofline,", text
        )
    assert "FAILED" in terminal_of(record(passed=False)) and ">FAILED<" in render_html(record(passed=False))
    assert record(passed=False).to_dict()["benchmark"] is None


def test_a_run_without_validation_says_so():
    of = record()
    of.validation = None
    assert of.status == "unvalidated"
    assert "NOT VALIDATED" in terminal_of(of) and "NOT VALIDATED" in render_html(of)


def test_a_partial_run_is_marked():
    of = RunRecord("bert-amp", partial="interrupted in autotune")
    assert of.status == "partial"
    for text in texts(of):
        assert "interrupted in autotune" in text


def test_every_note_is_there_once():
    text = terminal_of(record())
    for whose in ("run", "program", "validation", "benchmark"):
        assert text.count(f"a note of the {whose}") == 1


def test_the_roofline_by_hand():
    page = render_html(record())
    # Step 0: 1e7 bytes at 1e10 B/s and 1e8 FLOP at 1e11 FLOP/s are both 1 ms of its 2; step 1: 2 ms of its 4.
    assert page.count("50%") == 2
    assert "5 GB/s" in page and "50 GFLOP/s" in page


def test_results_are_strict_json(tmp_path):
    of = record()
    of.config["bad"] = float("nan")
    write_record(of, tmp_path)
    data = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert data["config"]["bad"] == "nan" and data["programs"][0]["steps"][1]["label"] == "fused_gelu"
    assert (tmp_path / "sources" / "kernels.cpp").read_text() == "void kernel() {}"
    assert (tmp_path / "plan-graph0.svg").exists() and (tmp_path / "report.html").exists()


def test_the_config_hash_tells_configs_apart():
    one, two = record(), record()
    assert one.config_hash == two.config_hash
    two.config["model"]["batch"] = 9
    assert one.config_hash != two.config_hash


def test_bars_are_in_scale():
    picture = bars("c", [Bar("a", 2.0, 2.0, 2.0, "2"), Bar("b", 1.0, 1.0, 1.0, "1")]).text
    widths = [float(width) for width in re.findall(r'class="peer"[^>]* width="([\d.]+)"', picture)]
    assert widths[0] == pytest.approx(2 * widths[1])


def test_flatten_and_plain():
    assert flatten({"a": {"b": {"c": 1}}, "d": [1, 2], "e": {}}) == {"a.b.c": 1, "d": [1, 2], "e": {}}
    assert plain({"p": Path("x"), "t": (1, float("inf"))}) == {"p": "x", "t": [1, "inf"]}


@dataclass(frozen=True)
class SomeConfig:
    model: dict = field(default_factory=lambda: {"name": "bert"})
    precision: dict = field(default_factory=lambda: {"mode": "amp"})
    tracking: dict = field(default_factory=lambda: {"uri": "http://me:secret@host"})


def test_the_pipelines_result_becomes_a_record(tmp_path, capsys):
    result = SimpleNamespace(
        config=SomeConfig(), folder=tmp_path, status="interrupted", stopped_in="autotune", versions={"torch": "2.14.1"},
        device="a CPU", weights="random", compilation=None, validation=validation(True), benchmark=benchmark(),
        stage_seconds={"capture": 1.0}, notes=["n"],
    )  # fmt: skip
    made = record_of(result)
    assert (made.name, made.status, made.partial) == ("bert-amp", "partial", "interrupted in autotune")
    assert "secret" not in json.dumps(made.to_dict())
    write(result)
    show(result)
    assert (tmp_path / "report.html").exists() and "PARTIAL" in capsys.readouterr().out
    assert program().launches == 1 and program().externs == 1

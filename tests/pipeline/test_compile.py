"""The hand-over from stage to stage, `optimize`, and the torch.compile backend, with stages that do nothing."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pipeline import optimize
from pipeline.backend import torchweld
from pipeline.compile import Session, _judge, compile_model
from pipeline.config import Config
from pipeline.dump import Dump
from pipeline.optimized import signature
from pipeline.progress import Progress
from stages.autotune.config import AutotuneConfig
from stages.autotune.guess import guess
from stages.autotune.judge import judge
from stages.fusion.config import Template
from stages.ir.errors import ConfigError, UserError
from stages.ir.schedule import Schedule
from tests.pipeline.fakes import Calls, install, replaced


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return install(monkeypatch)


def test_each_stage_gets_what_the_one_before_gave(calls: Calls, config: Config) -> None:
    progress = Progress(quiet=True)
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    compilation = compile_model(model, (x,), {}, Session(config, progress))
    stages = ["capture", "precision", "rewrite", "fusion", "buffers", "autotune", "codegen", "runtime"]
    assert calls.order == stages
    assert list(progress.seconds) == stages
    for name in stages[1:]:
        assert getattr(config, name) in calls.arguments[name]
    assert calls.arguments["rewrite"][0].notes == ["precision"]
    assert calls.arguments["fusion"][0].notes == ["precision", "rewrite"]
    assert calls.arguments["autotune"][0].notes == ("planned",)
    build, database = calls.arguments["autotune"][2:]
    assert build([1, 2]) == [(2, torch.device("cpu"), config.codegen)]
    assert database[:2] == ("database", None)  # nothing is tuned, so nothing is opened
    assert f"torch {torch.__version__.split('+')[0]}" in database[3]
    assert calls.arguments["runtime"][1].sources == {"kernel.cpp": "int main() {}"}
    assert torch.equal(compilation.call(x), model(x))


def test_a_stage_that_is_left_out_does_not_run(calls: Calls, config: Config) -> None:
    names = ("capture", "precision", "rewrite", "fusion", "buffers", "codegen", "runtime")
    compile_model(torch.relu, (torch.randn(2),), {}, Session(replace(config, stages=names)))
    assert tuple(calls.order) == names


def test_evaluation_mode_while_compiling_and_the_model_as_it_was(calls: Calls, config: Config, monkeypatch) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5)))
    model[2].eval()
    before = [module.training for module in model.modules()]
    seen = []
    fake = install(monkeypatch)
    from pipeline.stages import STAGES

    capture = STAGES["capture"].load()

    def watching(*arguments):
        seen.append([module.training for module in model.modules()] + [torch.is_grad_enabled()])
        return capture(*arguments)

    replaced(monkeypatch, "capture", watching)
    compile_model(model, (torch.randn(2, 3),), {}, Session(config))
    assert not any(seen[0])
    assert [module.training for module in model.modules()] == before
    assert fake.order[0] == "capture"


def test_amp_is_captured_under_autocast(calls: Calls) -> None:
    x = torch.randn(4, 3)
    model = nn.Linear(3, 2)
    fast = optimize(model, x, ["precision=amp"])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(x)
    assert fast(x).dtype == torch.bfloat16
    assert torch.equal(fast(x), expected)


def test_a_graph_that_appears_later_is_compiled_too(calls: Calls, config: Config) -> None:
    compilation = compile_model(torch.relu, (torch.randn(2),), {}, Session(config))
    slot = replace(compilation.slots[0], target=None)
    calls.services["late"](slot)
    assert slot.target is not None
    assert [unit.number for unit in compilation.units] == [0, 1]
    assert compilation.notes == ("captured",)


@pytest.mark.parametrize(("mode", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_whole_model_precisions_convert_a_copy_and_the_inputs(calls: Calls, mode: str, dtype: torch.dtype) -> None:
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    fast = optimize(model, x, [f"precision={mode}"])
    assert fast(x).dtype == dtype
    assert model.weight.dtype == torch.float32
    weight, bias = model.weight.to(dtype), model.bias.to(dtype)
    with torch.no_grad():
        assert torch.equal(fast(x), nn.functional.linear(x.to(dtype), weight, bias))


@pytest.mark.parametrize("error", ["StaleProgram", "SignatureMismatch"])
def test_a_program_that_no_longer_holds_is_compiled_again(calls: Calls, monkeypatch, error: str) -> None:
    from stages.capture.signature import SignatureMismatch
    from stages.runtime.errors import StaleProgram

    x = torch.randn(3)
    fast = optimize(torch.relu, x)
    kinds = {"StaleProgram": StaleProgram, "SignatureMismatch": SignatureMismatch}

    def stale(*arguments):
        raise kinds[error]("a weight was replaced")

    fast.compilations[0].slots[0].target = stale
    assert torch.equal(fast(x), torch.relu(x))
    assert calls.order.count("capture") == 2
    assert len(fast.programs) == 1


def test_calls_in_training_mode_run_in_evaluation_mode(calls: Calls) -> None:
    model = nn.Dropout(0.5)
    x = torch.ones(1000)
    fast = optimize(model, x)
    model.train()
    assert torch.equal(fast(x), x)
    assert model.training


def test_dump_writes_every_level_in_order(calls: Calls, config: Config, tmp_path: Path) -> None:
    compile_model(torch.relu, (torch.randn(2),), {}, Session(config, dump=Dump(tmp_path / "dump")))
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == [
        "00-capture-graph.txt",
        "01-precision-graph.txt",
        "02-rewrite-graph.txt",
        "03-fusion-kernels.txt",
        "03-fusion-program.txt",
        "04-buffers-kernels.txt",
        "04-buffers-program.txt",
        "05-autotune-kernels.txt",
        "05-autotune-program.txt",
        "06-codegen-kernel.cpp",
        "07-explain.txt",
    ]
    assert "relu" in (tmp_path / "dump" / "00-capture-graph.txt").read_text()


def test_debug_verifies_after_every_stage(calls: Calls, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    from stages.ir.kernel import IRError

    replaced(monkeypatch, "precision", lambda graph, config: replace(graph, inputs=[]))
    session = Session(replace(config, debug=True))
    with pytest.raises(IRError, match="placeholders"):
        compile_model(torch.relu, (torch.randn(2),), {}, session)
    assert "rewrite" not in calls.order


# ---- optimize ------------------------------------------------------------------------------


def test_inputs_are_a_tensor_a_tuple_or_a_dictionary(calls: Calls) -> None:
    def model(x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        return x * 2 if y is None else x - y

    x, y = torch.randn(3), torch.randn(3)
    assert torch.equal(optimize(model, x)(x), x * 2)
    assert torch.equal(optimize(model, (x, y))(x, y), x - y)
    assert torch.equal(optimize(model, {"x": x, "y": y})(x=x, y=y), x - y)


def test_one_program_for_each_signature(calls: Calls) -> None:
    fast = optimize(torch.relu, torch.randn(3))
    for shape in ((3,), (4,), (3,), (4,)):
        x = torch.randn(shape)
        assert torch.equal(fast(x), torch.relu(x))
    assert len(fast.programs) == 2
    assert fast.explain().count("explained") == 2
    assert [verdict.passed for verdict in fast.validate()] == [True, True]


def test_what_makes_a_signature() -> None:
    x = torch.randn(2, 3)
    same = signature((x, 1), {"a": None, "b": 2.0})
    assert same == signature((torch.zeros(2, 3), 1), {"b": 2.0, "a": None})
    others = [
        signature((x, True), {"a": None, "b": 2.0}),
        signature((x, 1.0), {"a": None, "b": 2.0}),
        signature((x, 2), {"a": None, "b": 2.0}),
        signature((x, 1), {"a": None, "b": -2.0}),
        signature((x, 1), {"a": x, "b": 2.0}),
        signature((x.double(), 1), {"a": None, "b": 2.0}),
        signature((x.T.contiguous().T, 1), {"a": None, "b": 2.0}),
        signature(([x], 1), {"a": None, "b": 2.0}),
        signature((torch.randn(3, 2), 1), {"a": None, "b": 2.0}),
    ]
    assert len({same, *others}) == len(others) + 1
    assert signature((0.0,), {}) != signature((-0.0,), {})
    assert signature((float("nan"),), {}) == signature((float("nan"),), {})


def test_threads_that_meet_a_new_shape_compile_it_once(calls: Calls) -> None:
    fast = optimize(torch.relu, torch.randn(3))
    x = torch.randn(5)
    threads = [threading.Thread(target=fast, args=(x,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls.order.count("capture") == 2


def test_no_gradient_is_recorded(calls: Calls) -> None:
    model = nn.Linear(3, 2)
    assert not optimize(model, torch.randn(1, 3))(torch.randn(1, 3)).requires_grad


@pytest.mark.parametrize(
    ("model", "overrides", "said"),
    [
        (torch.relu, ["precision=apm"], "did you mean 'amp'?"),
        (torch.relu, [3], "is neither a list of texts nor a mapping"),
        (torch.relu, None, "overrides: None is neither a list of texts nor a mapping"),
        (torch.relu, {"precision": "apm"}, "did you mean 'amp'?"),
        (torch.relu, "precision=apm", "did you mean 'amp'?"),
        (torch.relu, ["model=bert"], "the model is the one that you pass"),
        (3, [], "a int is no model"),
    ],
)
def test_optimize_refuses(calls: Calls, model: object, overrides: object, said: str) -> None:
    with pytest.raises(UserError, match=said.replace("?", r"\?")):
        optimize(model, torch.randn(2), overrides)  # type: ignore[arg-type]


def test_validate_says_when_the_stage_was_left_out(calls: Calls) -> None:
    stages = "stages=[capture,fusion,buffers,codegen,runtime]"
    with pytest.raises(ConfigError, match="'validate' was left out"):
        optimize(torch.relu, torch.randn(2), [stages]).validate()


# ---- torch.compile -------------------------------------------------------------------------


def test_the_backend_compiles_each_graph_with_its_options(calls: Calls, config: Config) -> None:
    compile_graph, capture_config, module, inputs = torchweld("module", ["x"], options={"capture.fullgraph": True})  # type: ignore[arg-type, misc]
    assert (module, inputs) == ("module", ["x"])
    assert capture_config.fullgraph is True

    from torch.fx.experimental.proxy_tensor import make_fx

    from stages.ir.graph import Graph, GraphInput

    x = torch.randn(3)
    traced = make_fx(torch.sin)(x)
    name = next(iter(traced.graph.nodes)).name
    executable = compile_graph(Graph(traced, [GraphInput(name, "user")], torch.device("cpu")))
    assert torch.equal(executable([x]), torch.sin(x))
    assert calls.order == ["precision", "rewrite", "fusion", "buffers", "autotune", "codegen", "runtime"]


def test_autocast_in_the_backend_is_the_options_or_the_users_own() -> None:
    """On the real stages: values and types are those of eager under autocast."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.randn(4, 3)
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = model(x)
            torch.compiler.reset()
            ambient = torch.compile(model, backend=torchweld)(x)
        torch.compiler.reset()
        asked = torch.compile(model, backend=torchweld, options={"precision": "amp"})(x)
    for result in (ambient, asked):
        assert result.dtype == torch.bfloat16
        torch.testing.assert_close(result, expected, atol=2**-7, rtol=2**-7)  # a rounding or two of bfloat16


def test_the_backend_refuses_to_convert_a_model(calls: Calls) -> None:
    with pytest.raises(ConfigError, match="which a backend of torch"):
        torchweld("module", [], options={"precision": "bf16"})  # type: ignore[arg-type]


def test_the_backend_refuses_a_bad_option(calls: Calls) -> None:
    with pytest.raises(ConfigError, match="did you mean 'amp'"):
        torchweld("module", [], options={"precision": "apm"})  # type: ignore[arg-type]


def judge_of(config: Config, schedules=None, device="cpu"):
    """The judge that the pipeline hands to fusion, with one template."""
    template = Template("product", ["mm"], devices=["cpu", "cuda"])
    config = replace(config, fusion=replace(config.fusion, templates=[template]))
    return _judge(Session(config, schedules=schedules), torch.device(device))


def test_a_recipe_decides_between_library_and_template_as_the_run_did(config: Config) -> None:
    chosen = Schedule(tile_m=64)
    kernels = [
        SimpleNamespace(template=SimpleNamespace(kernel=SimpleNamespace(hash=name))) for name in ("known", "new")
    ]
    judge = judge_of(config, schedules={"known": chosen})
    assert judge is not None
    assert [verdict.schedule for verdict in judge(kernels)] == [chosen, None]


def test_who_judges_templates(config: Config) -> None:
    tuned = replace(config, autotune=AutotuneConfig(trials=2, products={"tile_m": [64]}))
    untuned = replace(config, autotune=AutotuneConfig(trials=1, products={"tile_m": [64]}))
    assert judge_of(tuned).func is judge  # type: ignore[union-attr]
    assert judge_of(untuned, device="cuda").func is guess, "the cost model, made for a GPU"  # type: ignore[union-attr]
    assert judge_of(untuned) is None
    assert judge_of(replace(config, autotune=AutotuneConfig()), device="cuda") is None, "no space of schedules"
    assert judge_of(replace(tuned, stages=tuple(name for name in tuned.stages if name != "autotune"))) is None
    assert _judge(Session(tuned), torch.device("cpu")) is None, "the templates that there are name CUDA alone"

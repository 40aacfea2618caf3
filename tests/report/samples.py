"""A run by hand: torchweld takes 10 ms, eager 20 ms, one peer failed."""

from pipeline.report.record import DecisionRecord, PlanRecord, ProgramRecord, RunRecord, StepRecord
from stages.benchmark import Benchmark, Ceilings, CompileTime, Conditions, EngineResult, MemoryUse, Ratio, Summary
from stages.validate import Errors, OutputCheck, Validation

SVG = '<svg viewBox="0 0 10 10"><rect width="5" height="5"/></svg>'


def engine(name, median_ms, speedup):
    summary = Summary(median_ms, median_ms * 0.9, median_ms * 1.1, median_ms * 1.2, median_ms * 0.8)
    memory = MemoryUse(2 << 20, None, "growth of resident memory over one call (VmHWM)")
    ratio = None if speedup is None else Ratio(speedup, speedup * 0.95, speedup * 1.05)
    return EngineResult(name, summary, summary, ratio, 8e3 / median_ms, memory, CompileTime(12.5, 1.5), 1, (median_ms,))


def benchmark():
    conditions = Conditions(0.5, 2, 2, 2400.0, None)
    engines = (
        engine("eager", 20.0, None),
        engine("torchweld", 10.0, 2.0),
        EngineResult("inductor", failure="RuntimeError: no <compiler>"),
    )
    ceilings = Ceilings("cpu", 1e10, {"float32": 1e11}, 0.5)
    return Benchmark(
        *("eager", engines, Ratio(1.01, 0.99, 1.03), 30, 4.0, 8, "perf_counter", False, 0.95, conditions, conditions),
        ceilings=ceilings,
        notes=("a note of the benchmark",),
    )


def validation(passed):
    reasons = () if passed else ("relative error 0.003 exceeds 1e-06",)
    check = OutputCheck(
        0,
        "output['logits']",
        "float32",
        (8, 4),
        Errors(2e-7, 3e-7, 1e-6, 1.5),
        Errors(1e-7, 3e-7, 1e-6, 1.5),
        1e-6,
        2e-6,
        reasons=reasons,
    )
    step = "" if passed else "the first wrong value is 'gelu'"
    return Validation("fp32", 1, 2.0, (check,), reasons, ("a note of the validation",), step, {"agreement": 0.5})


def program():
    steps = (
        StepRecord(0, "extern", "aten.mm.out", "models/bert.py:12", "q = self.query(x)", "layer.0", "a matrix product",
                   "", 10_000_000, 100_000_000, "float32", 2.0),
        StepRecord(1, "launch", "fused_gelu", "models/bert.py:13", "y = gelu(q < 1)", "layer.0", "5 operations",
                   "0123456789abcdef", 20_000_000, 5_000_000, "float32", 4.0),
    )  # fmt: skip
    decision = DecisionRecord("mm", "gelu", False, "epilogue", "the producer is a torch operator", "models/bert.py:13")
    plan = PlanRecord(3 << 20, 2 << 20, 9 << 20, "greedy_by_size", SVG)
    return ProgramRecord("graph 0", steps, (decision,), plan, 30_000_000, 50_000_000, ("a note of the program",))


def record(passed=True):
    return RunRecord(
        name="bert-fp32",
        command="run.py model=bert precision=fp32",
        started="2026-01-02T03:04:05+00:00",
        seconds=60.0,
        config={"model": {"name": "bert", "batch": 8}, "tracking": {"uri": "http://mlflow.example:5000"}},
        versions={"torch": "2.14.1"},
        device={"name": "a CPU"},
        stage_seconds={"capture": 1.5},
        validation=validation(passed),
        benchmark=benchmark(),
        programs=[program()],
        notes=["a note of the run"],
        sources={"kernels.cpp": "void kernel() {}"},
    )

"""The search for the first wrong step, on the real stages with one kernel made wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from pipeline.bisect import first_wrong_step
from pipeline.compile import Session, compile_model
from pipeline.compose import compose
from pipeline.configure import configuration
from pipeline.stages import STAGES
from stages.ir.expr import const, op
from tests.pipeline.fakes import replaced


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = torch.tanh(self.first(x)) * 2
        return torch.softmax(self.second(middle), -1)


@pytest.mark.parametrize("wrong", [None, 0, 1])
def test_the_step_that_was_made_wrong_is_found(monkeypatch: pytest.MonkeyPatch, wrong: int | None) -> None:
    overrides = ["fusion=none", "rewrite=none"]
    config = configuration(compose(overrides), overrides)[0]
    fusion = STAGES["fusion"].load()
    names: list[str] = []

    def spoiled(graph, config, judge=None):  # type: ignore[no-untyped-def]
        program = fusion(graph, config, judge)
        steps = list(program.steps)
        places = [place for place, step in enumerate(steps) if step in program.launches]
        names.extend(program.values[steps[place].writes[0]] for place in places)
        if wrong is not None:
            launch = steps[places[wrong]]
            (store,) = launch.kernel.stores
            off = replace(store, value=op("add", store.value, const(0.25, store.value.dtype)))
            steps[places[wrong]] = replace(launch, kernel=replace(launch.kernel, stores=(off,)))
        return replace(program, steps=tuple(steps))

    replaced(monkeypatch, "fusion", spoiled)
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    compilation = compile_model(Model(), (x,), {}, Session(config))
    with torch.no_grad():
        text = first_wrong_step(compilation, (x,), {}, config)
    if wrong is None:
        assert text.startswith("every step is right")
    else:
        assert f"the first wrong value is '{names[wrong]}'" in text

"""Peers: each is right, leaves no trace in Inductor's configuration, and fails alone."""

import os

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import nn

from stages.benchmark.config import EngineConfig
from stages.benchmark.peers import build_peers

CPU = torch.device("cpu")


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval()


def on(x):
    def call(function):
        with torch.no_grad():
            return function(x)

    return call


def test_every_peer_is_right_and_leaves_no_trace(model):
    x = torch.randn(4, 8)
    config = EngineConfig(peers=["eager", "inductor_best"], best_variants_cpu=["default", "default+frozen"])
    settings, environment, threads = inductor_config.save_config(), dict(os.environ), torch.get_num_threads()
    said = []
    eager, best = build_peers(config.peers, model, on(x), CPU, config, said.append)
    assert inductor_config.save_config() == settings and torch.get_num_threads() == threads
    assert {key for key in os.environ if "CACHE_DIR" in key} == {key for key in environment if "CACHE_DIR" in key}
    expected = model(x).detach()
    torch.testing.assert_close(eager.engine(), expected, rtol=0, atol=0)
    torch.testing.assert_close(best.engine(), expected)
    assert eager.compile_time.cold_seconds is None and best.compile_time.cold_seconds > 0
    assert best.compile_time.warm_seconds > 0
    assert best.detail.startswith(("default (of", "default+frozen (of")) and best.detail.count(" ms") == 2
    assert said == ["building the peer eager", "building the peer inductor_best"]


def test_a_peer_that_fails_says_why(model):
    class Refuses(nn.Module):
        def forward(self, x):
            if torch.compiler.is_compiling():
                raise ValueError("not for compilers")
            return x

    config = EngineConfig(peers=["eager", "eager_cudagraph", "inductor"])
    eager, graph, inductor = build_peers(config.peers, Refuses(), on(torch.ones(2)), CPU, config)
    assert eager.engine is not None
    assert graph.engine is None and graph.failure == "CUDA graphs want a CUDA device"
    assert inductor.engine is None and "compiled nothing of the model" in inductor.failure

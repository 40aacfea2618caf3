"""Imported by the server that jobs are forked from: what every job would otherwise do first, done once.

TorchDynamo, AOTAutograd, Hydra and our own rooms build large tables when they are first used, which takes longer than
a small model does. A tiny model is taken through them here, on one thread, for a forked process may not use a pool of
threads that its parent had; no kernel of ours is built or run.
"""

from __future__ import annotations

from importlib import import_module

import torch
from torch import nn

from pipeline.compile import evaluating
from pipeline.configure import session_of
from stages import capture, fusion, rewrite

_LIBRARIES = ("transformers.modeling_utils", "timm", "torchvision", "diffusers.models.modeling_utils")


def _warm() -> None:
    for name in _LIBRARIES:
        try:
            import_module(name)
        except ImportError:
            continue  # the jobs that need it will say so
    config = session_of(["tracking=off"]).config
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 4), nn.Softmax(-1))
    with evaluating(model), torch.no_grad():
        captured = capture.run(model, (torch.ones(1, 3, 2, 2),), {}, config.capture)
        for graph in captured.graphs:
            fusion.run(rewrite.run(graph, config.rewrite), config.fusion)
    torch._dynamo.reset()


_threads = torch.get_num_threads()
torch.set_num_threads(1)
_warm()
torch.set_num_threads(_threads)

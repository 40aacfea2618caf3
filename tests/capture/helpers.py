"""Comparing a captured model with eager: values, types, strides, mutation, which tensors are one or share storage."""

from __future__ import annotations

import copy
import dataclasses

import torch

from stages.capture import CaptureConfig, FlatCaller, run
from stages.ir.graph import verify


def parts_of(value):
    """The parts of a container or object by name; None for what has none."""
    if isinstance(value, dict):
        return {
            **value,
            **({f".{key}": part for key, part in vars(value).items()} if hasattr(value, "__dict__") else {}),
        }
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) or (hasattr(value, "__dict__") and not callable(value)):
        return dict(vars(value))
    return None


def tensors_of(value):
    if isinstance(value, torch.nn.Module):
        return [*value.parameters(), *value.buffers()]
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in (parts_of(value) or {}).values() for tensor in tensors_of(part)]


def assert_same(ours, eager, path="result"):
    """Equal types, structure and scalars; tensors equal in value, dtype, strides, requires_grad."""
    assert type(ours) is type(eager), f"{path}: {type(ours)} is not {type(eager)}"
    if isinstance(eager, torch.Tensor):
        torch.testing.assert_close(ours, eager, equal_nan=True, msg=lambda text: f"{path}: {text}")
        assert ours.stride() == eager.stride(), f"{path}: strides {ours.stride()}, not {eager.stride()}"
        assert ours.requires_grad == eager.requires_grad, path
        return
    parts = parts_of(eager)
    if parts is None:
        assert ours is eager or ours == eager, f"{path}: {ours!r} is not {eager!r}"
        return
    assert list(parts) == list(parts_of(ours)), path
    for key, part in parts.items():
        assert_same(parts_of(ours)[key], part, f"{path}.{key}")


def relations(tensors):
    """Which of the tensors are one object, and which share storage."""
    return (
        [[first is second for first in tensors] for second in tensors],
        [
            [first.untyped_storage()._cdata == second.untyped_storage()._cdata for first in tensors]
            for second in tensors
        ],
    )


def captured(model, *args, fullgraph=True, **kwargs):
    return run(model, args, kwargs, CaptureConfig(fullgraph=fullgraph))


def check(model, *args, flat=True, calls=2, **kwargs):
    """Capture `model`, call it `calls` times, and compare each call with eager on a copy of everything.

    `flat` says whether the call is expected past Dynamo. Gives what `run` gave.
    """
    model_before, args_before, kwargs_before = copy.deepcopy((model, args, kwargs))
    eager_model, eager_args, eager_kwargs = copy.deepcopy((model, args, kwargs))
    random = torch.get_rng_state()
    result = captured(model, *args, **kwargs)
    assert torch.equal(torch.get_rng_state(), random)
    assert_same((args, kwargs), (args_before, kwargs_before), "arguments after capture")
    if isinstance(model, torch.nn.Module):
        assert_same(dict(model.state_dict()), dict(model_before.state_dict()), "weights after capture")
    for graph in result.graphs:
        verify(graph)
    assert isinstance(result.call, FlatCaller) == flat, result.notes
    for number in range(calls):
        torch.manual_seed(number)
        eager = eager_model(*eager_args, **eager_kwargs)
        torch.manual_seed(number)
        ours = result.call(*args, **kwargs)
        assert_same(ours, eager)
        assert_same((args, kwargs), (eager_args, eager_kwargs), "arguments after the call")
        if isinstance(model, torch.nn.Module):
            assert_same(dict(model.state_dict()), dict(eager_model.state_dict()), "weights after the call")
        ours_all = tensors_of([ours, model, args, kwargs])
        eager_all = tensors_of([eager, eager_model, eager_args, eager_kwargs])
        assert relations(ours_all) == relations(eager_all)
    return result

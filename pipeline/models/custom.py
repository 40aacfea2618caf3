"""The user's own model, by import path: `model.path=package.module:factory`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import torch

from pipeline.config import ModelConfig
from stages.ir.errors import UserError


def build(config: ModelConfig, seed: int) -> tuple[Any, str]:
    """What the path stands for, if that is a module; else what calling it gives. And whose its weights are."""
    target = find(config)
    if isinstance(target, torch.nn.Module):
        return target, f"those that {config.path} has"
    try:
        model = target()
    except Exception as error:
        raise UserError(
            f"model.path: {config.path}() raised {type(error).__name__}: {error}", "it is called without arguments"
        ) from error
    if not callable(model):
        raise UserError(f"model.path: {config.path}() returned a {type(model).__name__}, which cannot be called")
    return model, f"those that {config.path} gives it, under seed {seed}"


def find(config: ModelConfig) -> Any:
    """What `package.module:name` stands for. The current folder is searched after all installed packages."""
    module_name, _, name = (config.path or "").partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = import_module(module_name)
    except Exception as error:  # the user's module may raise anything
        raise UserError(
            f"model.path: '{module_name}' does not import: {type(error).__name__}: {error}",
            "it must be installed, or lie in the current folder",
        ) from error
    target = getattr(module, name, None)
    if not callable(target):
        what = "is nothing to call" if hasattr(module, name) else "is not there"
        raise UserError(f"model.path: '{name}' of module '{module_name}' {what}", "write package.module:factory")
    return target

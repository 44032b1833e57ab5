"""Where a model takes its inputs, also if its weights are somewhere else while it does not run."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def home_of(model: nn.Module) -> torch.device:
    """The device of a model's first parameter; that to which it is loaded, if it is offloaded.

    >>> home_of(nn.Linear(2, 3))
    device(type='cpu')
    """
    first = next(model.parameters(), None)
    if first is None:
        return torch.device("cpu")
    if not first.is_meta:
        return first.device
    hooks = (hook for module in model.modules() for hook in offloading(module))
    return next((load_device(hook) for hook in hooks), first.device)


def offloading(module: nn.Module) -> list[Any]:
    """The hooks (of accelerate) that load the weights of a module before it runs, and drop them afterwards."""
    hook = module.__dict__.get("_hf_hook")
    if hook is None:
        return []
    hooks = getattr(hook, "hooks", (hook,))  # several may be chained
    return [h for h in hooks if getattr(h, "offload", False) and getattr(h, "weights_map", None) is not None]


def load_device(hook: Any) -> torch.device:
    """The device to which a hook loads weights."""
    return torch.device("cpu" if hook.execution_device is None else hook.execution_device)

"""Leave no trace: whatever a forward pass changes around it is put back, also after an exception."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

from nrm.capture.anatomy import Anatomy
from nrm.capture.arguments import PLAIN

if TYPE_CHECKING:
    from nrm.capture.recorder import Recorder

_CONTAINERS = (dict, list, set)
_COMMON = {dict, OrderedDict, list, set}


@contextlib.contextmanager
def untouched(anatomy: Anatomy) -> Iterator[None]:
    """Puts back the model's attributes, its training flags, and the states of all random generators."""
    attributes = [(module, module.__dict__.copy(), *_contents(module)) for _, module in anatomy.modules]
    states = _random_states()
    dtype = torch.get_default_dtype()
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch.set_default_dtype(dtype)
        _restore_random(states)
        for module, before, filled, empty in attributes:
            _restore(module, before, filled, empty)


@contextlib.contextmanager
def plain_execution() -> Iterator[None]:
    """No gradients, no inference tensors, no autocast, nothing compiled: one call of torch is one call of torch."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        if torch.cuda.is_available():
            stack.enter_context(torch.autocast("cuda", enabled=False))
        if "torch._dynamo" in sys.modules:  # importing it takes seconds, and without it nothing is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Python does not look for unreachable objects meanwhile.

    A pass makes thousands of objects that stay. Each time their number has grown enough, Python would visit all objects
    of the process, those of the model's library too, which took a quarter of the time of capturing a language model.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def plain_attention(anatomy: Anatomy) -> Iterator[list[str]]:
    """Attention of Hugging Face models by torch's own function, where they use kernels that cannot be followed.

    Gives the names of the others. What a configuration said, it says again afterwards.
    """
    named = (m for _, m in anatomy.modules if "config" in m.__dict__ or hasattr(type(m), "config"))
    found = {id(m.config): m.config for m in named}
    all_named = [(config, _attention_of(config)) for config in found.values()]
    changed = [(config, name) for config, name in all_named if name is not None and name not in FOLLOWED]
    try:
        for config, _ in changed:
            setattr(config, ATTENTION, "sdpa")
        yield sorted({name for _, name in changed})
    finally:
        for config, name in changed:
            setattr(config, ATTENTION, name)


ATTENTION = "_attn_implementation"
"""Where a configuration says by what attention is computed; it is what models read in every call."""

FOLLOWED = ("eager", "sdpa")
"""Implementations of attention that are made of calls of torch."""


def _attention_of(config: Any) -> str | None:
    name = getattr(config, ATTENTION, None)
    return name if isinstance(name, str) else None


@contextlib.contextmanager
def watched_modules(recorder: Recorder) -> Iterator[None]:
    """Tells the recorder when modules begin and end, by hooks that belong to no module."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=".*global hooks on modules")  # compiled parts run eagerly, hooks fire
        before = hooks.register_module_forward_pre_hook(partial(recorder.modules.enter, recorder))
        stack.callback(before.remove)
        after = hooks.register_module_forward_hook(
            partial(recorder.modules.leave, recorder), with_kwargs=True, always_call=True
        )
        stack.callback(after.remove)
        stack.callback(hooks._global_forward_hooks_with_kwargs.pop, after.id, None)  # which torch's own removal forgets
        yield


def _contents(module: nn.Module) -> tuple[dict[str, Any], list[Any]]:
    """Shallow copies of the containers among a module's attributes (parameters, hooks), and those without any."""
    filled: dict[str, Any] = {}
    empty: list[Any] = []
    for name, value in module.__dict__.items():
        kind = type(value)
        if kind in _COMMON or (kind not in PLAIN and isinstance(value, _CONTAINERS)):
            if value:
                filled[name] = value.copy()
            else:
                empty.append(value)
    return filled, empty


def _restore(module: nn.Module, before: dict[str, Any], filled: dict[str, Any], empty: list[Any]) -> None:
    now = module.__dict__
    if not _same(now, before):
        now.clear()
        now.update(before)
    for container in empty:
        if container:
            container.clear()
    for name, copy in filled.items():
        container = before[name]
        if not _same(container, copy):
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(copy)


def _same(container: Any, copy: Any) -> bool:
    """Whether a container still has the very objects of its copy, in their order."""
    if len(container) != len(copy):
        return False
    if not copy:
        return True
    if isinstance(container, dict):
        return all(map(is_, container.values(), copy.values())) and list(container) == list(copy)
    if isinstance(container, list):
        return all(map(is_, container, copy))
    return bool(container == copy)


def _random_states() -> dict[str, Any]:
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def _restore_random(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])

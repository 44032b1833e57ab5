"""Weights from files, which may be anything: nothing is ever unpickled, and a head of another width is fitted."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from nrm.errors import InputError

PLAIN = (".pt", ".pth", ".bin")
WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Names under which training scripts keep the weights in a larger dictionary."""
COUNTER = "num_batches_tracked"

StateDict = dict[str, Tensor]


def read_weights(path: Path) -> StateDict:
    """The tensors of a file of weights by name."""
    if not path.is_file():
        raise InputError("no such file of weights", got=str(path), expected="DEFAULT, none, or a file")
    if path.suffix == ".safetensors":
        found: Any = _read_safetensors(path)
    elif path.suffix in PLAIN:
        found = _read_plain(path)
    else:
        raise InputError("not a file of weights", got=path.name, expected=f".safetensors, {', '.join(PLAIN)}")
    for wrapper in WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping):
            found = found[wrapper]
    if not isinstance(found, Mapping) or not found or not all(isinstance(v, Tensor) for v in found.values()):
        raise InputError(
            "the file has no weights", got=f"{path.name}: {type(found).__name__}", expected="tensors by name",
            hint="torch.save(model.state_dict(), path)",
        )  # fmt: skip
    return {name.removeprefix("module."): value for name, value in found.items()}


def _read_safetensors(path: Path) -> StateDict:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError("the weights cannot be read", got=f"{path.name}: {error}"[:200]) from error


def _read_plain(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles that are refused anyway
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            "the file is no plain file of weights", got=f"{path.name}: it would run code, or is damaged",
            expected="a dictionary of tensors", hint="torch.save(model.state_dict(), path), or .safetensors",
        ) from error  # fmt: skip
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError("the weights cannot be read", got=f"{path.name}: {text[:160]}") from error


def fit_weights(model: nn.Module, state: StateDict, path: Path) -> list[str]:
    """Loads the weights into the model; layers of its head get the widths that the weights have. What was changed.

    The weights have to have the names of the model's own.
    """
    own = model.state_dict()
    missing = [name for name in own if name not in state and not name.endswith(COUNTER)]
    unknown = [name for name in state if name not in own]
    if missing or unknown:
        raise InputError(
            "the weights are of another model", where=path.name, got=_differences(missing, unknown),
            expected=f"{len(own)} tensors named as the model's",
        )  # fmt: skip
    notes = []
    for name, module in list(model.named_modules()):
        weight = state.get(f"{name}.weight")
        if weight is not None and weight.shape != own[f"{name}.weight"].shape:
            notes.append(_resize(model, name, module, tuple(weight.shape), path))
    _load(model, {**{name: own[name] for name in own if name.endswith(COUNTER)}, **state}, path)
    return notes


def _resize(model: nn.Module, name: str, module: nn.Module, shape: tuple[int, ...], path: Path) -> str:
    """Puts a layer of the shape of its weights in place of one of a head."""
    made: nn.Module
    if isinstance(module, nn.Linear) and len(shape) == 2:
        made = nn.Linear(shape[1], shape[0], bias=module.bias is not None)
        before = module.in_features, module.out_features
    elif isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) == shape[2:] and module.groups == 1:
        made = nn.Conv2d(shape[1], shape[0], 1, bias=module.bias is not None)
        before = module.in_channels, module.out_channels
    else:
        own = next(module.parameters()).shape
        raise InputError(
            "the weights have another shape", where=path.name, got=f"{name}: {shape}", expected=f"{tuple(own)}",
            hint="only dense layers and 1 x 1 convolutions of a head are fitted",
        )  # fmt: skip
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, made)
    return f"{name} has {shape[1]} -> {shape[0]} as in {path.name}, instead of {before[0]} -> {before[1]}"


def _load(model: nn.Module, state: StateDict, path: Path) -> None:
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:4]]
        raise InputError("the weights do not fit the model", where=path.name, got="; ".join(lines)[:300]) from error


def _differences(missing: list[str], unknown: list[str]) -> str:
    texts = [
        f"{len(names)} {what} ({', '.join(names[:3])}{' ...' if len(names) > 3 else ''})"
        for what, names in (("missing", missing), ("unknown", unknown))
        if names
    ]
    return ", ".join(texts)

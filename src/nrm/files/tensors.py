"""Tensors in files, of numpy and safetensors, from a path or from bytes; nothing that is read can run code."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from nrm.errors import InputError

TENSORS = (".npy", ".safetensors")
"""The endings of files of tensors."""
ARRAY = b"\x93NUMPY"


def holds_tensors(content: bytes) -> bool:
    """Whether bytes are those of a file of tensors, as their beginning tells: safetensors have a length, then JSON."""
    return content.startswith(ARRAY) or content[8:9] == b"{"


def read_tensors(source: bytes | Path, name: str) -> Tensor | dict[str, Tensor]:
    """The tensor of a file or its bytes, or tensors by name if it has several; ``name`` is what errors call it.

    >>> buffer = io.BytesIO()
    >>> np.save(buffer, [1.0, 2.0])
    >>> read_tensors(buffer.getvalue(), "x")
    tensor([1., 2.], dtype=torch.float64)
    """
    of_numpy = source.startswith(ARRAY) if isinstance(source, bytes) else source.suffix.lower() == ".npy"
    return _read_array(source, name) if of_numpy else _read_safetensors(source, name)


def _read_array(source: bytes | Path, name: str) -> Tensor:
    try:
        array = np.load(io.BytesIO(source) if isinstance(source, bytes) else source, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("not a single array")
        return torch.from_numpy(np.ascontiguousarray(array))
    except (ValueError, TypeError, OSError, EOFError) as error:
        raise InputError(
            "the array cannot be read", got=f"{name}: {str(error)[:120]}",
            expected="an array of numbers, as numpy.save writes it",
        ) from error  # fmt: skip


def _read_safetensors(source: bytes | Path, name: str) -> Tensor | dict[str, Tensor]:
    try:
        found = load_tensors(source if isinstance(source, bytes) else source.read_bytes())
    except (SafetensorError, OSError) as error:
        raise InputError("the tensors cannot be read", got=f"{name}: {str(error)[:120]}") from error
    if not found:
        raise InputError("the file has no tensors", got=name)
    return next(iter(found.values())) if len(found) == 1 else found

"""A fingerprint of a model: equal for equal weights, names and shapes, on every machine."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def model_digest(model: nn.Module) -> str:
    """A digest of the model's class and of every parameter and buffer."""
    digest = hashlib.blake2b(type(model).__qualname__.encode(), digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        if not isinstance(tensor, torch.Tensor):
            continue
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        data = tensor.detach().cpu().contiguous().view(-1)
        digest.update(data.view(torch.uint8).numpy().tobytes() if data.numel() else b"")
    return digest.hexdigest()

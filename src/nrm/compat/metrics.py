"""Explanations for libraries that evaluate them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from nrm.compat.captum import LRP


def quantus(
    model: nn.Module, inputs: Any, targets: Any, *, device: Any = None, **options: Any
) -> npt.NDArray[np.floating[Any]]:
    """An ``explain_func`` for Quantus: relevance in units of the output, as an array of the inputs' shape.

    ``metric(model=model, ..., explain_func=nrm.compat.quantus, explain_func_kwargs={"rules": "epsilon-plus"})``: the
    keywords are options of :func:`nrm.measure`. Quantus normalises attributions unless it is told not to.

    >>> model = nn.Linear(4, 2)
    >>> quantus(model, np.ones((3, 4), dtype=np.float32), np.array([0, 1, 1])).shape
    (3, 4)
    """
    like = next(model.parameters(), torch.zeros(()))
    x = torch.as_tensor(inputs).to(device=device or like.device, dtype=like.dtype)
    found: npt.NDArray[np.floating[Any]] = LRP(model, **options).attribute(x, target=targets).cpu().numpy()
    return found

"""What turns an image into a sample of the model, and words for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from nrm.cli.imported import import_named, using
from nrm.errors import InputError

NAMES = ("plain", "imagenet")
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Transform(NamedTuple):
    """From a PIL image to a sample without a sample axis (a tensor, or tensors by name), and words for it."""

    of: Callable[[Any], Any]
    text: str


def read_transform(name: str, model: nn.Module) -> Transform:
    """A transform by name: ``plain``, ``imagenet``, or a function of the user's as ``package.module:function``."""
    if name == "plain":
        return plain(model)
    if name == "imagenet":
        return imagenet()
    if ":" not in name:
        expected = f"{', '.join(NAMES)}, or package.module:function"
        raise InputError("no such transform", got=name, expected=expected)
    found = import_named(name, "transform")
    if not callable(found):
        raise InputError("not a transform", got=f"{name}: {type(found).__name__}", expected="a function of an image")
    return Transform(found, name)


def plain(model: nn.Module) -> Transform:
    """Values from 0 to 1 in the image's own size; grey where the network's first convolution takes one channel."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    if first is not None and first.in_channels == 1:
        return Transform(_grey, "plain: grey, 0 to 1, in its own size")
    return Transform(_colours, "plain: RGB, 0 to 1, in its own size")


def _grey(image: Any) -> Tensor:
    return torch.from_numpy(np.array(image.convert("L"), dtype=np.float32) / 255)[None]


def _colours(image: Any) -> Tensor:
    return torch.from_numpy(np.array(image.convert("RGB"), dtype=np.float32) / 255).permute(2, 0, 1)


def imagenet() -> Transform:
    """What networks for ImageNet expect."""
    with using("vision", "the transform imagenet"):
        from torchvision.transforms import CenterCrop, Compose, Normalize, Resize, ToTensor
    steps = Compose([Resize(256), CenterCrop(224), ToTensor(), Normalize(MEAN, DEVIATION)])
    return Transform(steps, "imagenet: short side 256, centre crop 224, normalized by ImageNet's mean and deviation")

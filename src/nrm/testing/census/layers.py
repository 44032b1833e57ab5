"""The layers of torch.nn: each between two linear ones where it keeps the width, or as the whole model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nrm.testing.census.judge import enliven
from nrm.testing.census.subject import Cases, CensusCase, Subject

OF = "torch.nn"

ONE, TWO, THREE = (2, 4, 12), (2, 4, 12, 12), (2, 4, 8, 8, 8)
"""Samples, channels, and one, two or three axes of space."""
ROW = (2, 12)

ACTIVATIONS = (
    "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "Mish",
    "PReLU", "RReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh",
    "Tanhshrink", "Identity", "Dropout", "AlphaDropout",
)  # fmt: skip

Given = tuple[Callable[[], nn.Module], tuple[int, ...]]


def _spatial(name: str, *args: Any, of: tuple[int, ...] = (1, 2, 3), **options: Any) -> dict[str, Given]:
    """A layer for one, two and three axes of space."""
    shapes = {1: ONE, 2: TWO, 3: THREE}
    return {f"{name}{n}d": (lambda n=n: getattr(nn, f"{name}{n}d")(*args, **options), shapes[n]) for n in of}  # type: ignore[misc]


PLAIN: dict[str, Given] = {
    **{name: (getattr(nn, name), ROW) for name in ACTIVATIONS},
    **_spatial("Conv", 4, 6, 3), **_spatial("ConvTranspose", 4, 6, 3, 2), **_spatial("BatchNorm", 4),
    **_spatial("InstanceNorm", 4, affine=True), **_spatial("MaxPool", 2), **_spatial("AvgPool", 2),
    **_spatial("AdaptiveAvgPool", 2), **_spatial("AdaptiveMaxPool", 2), **_spatial("LPPool", 2.0, 2),
    **_spatial("FractionalMaxPool", 2, output_size=3, of=(2, 3)), **_spatial("ConstantPad", 1, 0.5),
    **_spatial("ZeroPad", 1), **_spatial("ReflectionPad", 1), **_spatial("ReplicationPad", 1),
    **_spatial("CircularPad", 1), **_spatial("Dropout", 0.5), "FeatureAlphaDropout": (nn.FeatureAlphaDropout, TWO),
    "Softmax2d": (nn.Softmax2d, TWO), "UpsamplingBilinear2d": (lambda: nn.UpsamplingBilinear2d(scale_factor=2), TWO),
    "UpsamplingNearest2d": (lambda: nn.UpsamplingNearest2d(scale_factor=2), TWO),
    "Upsample": (lambda: nn.Upsample(scale_factor=2.0, mode="bicubic"), TWO),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), TWO), "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), TWO),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), TWO), "CrossMapLRN2d": (lambda: nn.CrossMapLRN2d(3), TWO),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(3, alpha=1.0), TWO),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), TWO),
    "Unfold": (lambda: nn.Unfold(3), TWO), "Fold": (lambda: nn.Fold(5, 2), (2, 4, 16)),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(4), TWO), "LayerNorm": (lambda: nn.LayerNorm(12), ROW),
    "RMSNorm": (lambda: nn.RMSNorm(12), ROW), "Linear": (lambda: nn.Linear(12, 5), ROW),
    "Flatten": (nn.Flatten, ONE), "Unflatten": (lambda: nn.Unflatten(1, (3, 4)), ROW), "GLU": (nn.GLU, ROW),
    "Softmax": (lambda: nn.Softmax(1), ROW), "Softmin": (lambda: nn.Softmin(1), ROW),
    "LogSoftmax": (lambda: nn.LogSoftmax(1), ROW), "Threshold": (lambda: nn.Threshold(0.1, -0.2), ROW),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(12, 2, 24, batch_first=True), ONE),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 2, 24, batch_first=True), 2), ONE),
    "batch norm of the batch itself": (lambda: nn.BatchNorm1d(12, track_running_stats=False), ROW),
}  # fmt: skip
"""Layers of one tensor."""


class Called(nn.Module):
    """A layer that is called in a way of its own, behind a linear layer."""

    def __init__(self, layer: nn.Module, call: Callable[[Any, Tensor], Any], width: int = 12) -> None:
        super().__init__()
        self.first, self.layer, self.call = nn.Linear(width, width), layer, call

    def forward(self, x: Tensor) -> Tensor:
        """The layer on what the linear one gives; the first tensor of what it returns."""
        found = self.call(self.layer, self.first(x))
        result: Tensor = found[0] if isinstance(found, tuple) else found
        return result


def _with(layer: Callable[[], nn.Module], call: Callable[[Any, Tensor], Any], shape: tuple[int, ...] = ROW) -> Given:
    return lambda: Called(layer(), call, shape[-1]), shape


def _halves(layer: Any, x: Tensor) -> Any:
    return layer(x[:, :6], x[:, 6:])


def _unpooled(n: int) -> Given:
    pool, unpool = getattr(nn, f"MaxPool{n}d"), getattr(nn, f"MaxUnpool{n}d")
    return _with(lambda: unpool(2), lambda layer, x: layer(*pool(2, return_indices=True)(x)), (ONE, TWO, THREE)[n - 1])


CALLED: dict[str, Given] = {
    "RNN": _with(lambda: nn.RNN(12, 6, batch_first=True), lambda layer, x: layer(x), ONE),
    "LSTM": _with(lambda: nn.LSTM(12, 6, 2, bidirectional=True, batch_first=True), lambda layer, x: layer(x), ONE),
    "GRU": _with(lambda: nn.GRU(12, 6, batch_first=True), lambda layer, x: layer(x), ONE),
    "RNNCell": _with(lambda: nn.RNNCell(12, 6), lambda layer, x: layer(x)),
    "LSTMCell": _with(lambda: nn.LSTMCell(12, 6), lambda layer, x: layer(x)),
    "GRUCell": _with(lambda: nn.GRUCell(12, 6), lambda layer, x: layer(x)),
    "MultiheadAttention": _with(
        lambda: nn.MultiheadAttention(12, 2, batch_first=True), lambda layer, x: layer(x, x.flip(1), x), ONE),
    "TransformerDecoderLayer": _with(
        lambda: nn.TransformerDecoderLayer(12, 2, 24, batch_first=True), lambda layer, x: layer(x, x.flip(1)), ONE),
    "TransformerDecoder": _with(
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(12, 2, 24, batch_first=True), 2),
        lambda layer, x: layer(x, x.flip(1)), ONE),
    "Transformer": _with(
        lambda: nn.Transformer(12, 2, 1, 1, 24, batch_first=True), lambda layer, x: layer(x, x.flip(1)), ONE),
    "Bilinear": _with(lambda: nn.Bilinear(6, 6, 4), _halves),
    "CosineSimilarity": _with(lambda: nn.CosineSimilarity(), lambda layer, x: _halves(layer, x)[:, None]),
    "PairwiseDistance": _with(lambda: nn.PairwiseDistance(), lambda layer, x: _halves(layer, x)[:, None]),
    "AdaptiveLogSoftmaxWithLoss": _with(
        lambda: nn.AdaptiveLogSoftmaxWithLoss(12, 20, [5, 10]), lambda layer, x: layer.log_prob(x)),
    **{f"MaxUnpool{n}d": _unpooled(n) for n in (1, 2, 3)},
}  # fmt: skip
"""Layers that take something else than one tensor."""

LOSSES = (
    "L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss", "PoissonNLLLoss", "KLDivLoss", "SoftMarginLoss",
    "BCEWithLogitsLoss", "CrossEntropyLoss", "HingeEmbeddingLoss", "MultiLabelSoftMarginLoss",
)  # fmt: skip
"""Losses of a prediction and a target of its shape, one for every sample."""


class Scored(nn.Module):
    """The loss of every sample, its target being constant."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.first, self.loss = nn.Linear(12, 6), getattr(nn, name)(reduction="none")

    def forward(self, x: Tensor) -> Tensor:
        """The loss, one number per sample."""
        y = self.first(x)
        found: Tensor = self.loss(y, torch.full_like(y, 0.3)).reshape(len(x), -1)
        return found.sum(1, keepdim=True)


class Looked(nn.Module):
    """Rows of an embedding, put together."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """A linear layer on the mean of what is looked up."""
        found = self.layer(x)
        result: Tensor = self.head(found if found.ndim == 2 else found.mean(1))
        return result


def cases() -> Cases:
    """One case for every layer."""
    given = {**PLAIN, **CALLED, **{name: (lambda name=name: Scored(name), ROW) for name in LOSSES}}  # type: ignore[misc]
    found = [CensusCase(OF, name, _maker(build, shape)) for name, (build, shape) in given.items()]
    found += [CensusCase(OF, name, _looked(name)) for name in ("Embedding", "EmbeddingBag")]
    return found


def _maker(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> Callable[[], Subject]:
    def make() -> Subject:
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(1)
        one, other = (torch.randn(shape, generator=generator) for _ in range(2))
        return Subject(enliven(build()), one, other, flat)

    return make


def _looked(name: str) -> Callable[[], Subject]:
    def make() -> Subject:
        torch.manual_seed(0)
        ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
        return Subject(enliven(Looked(getattr(nn, name)(10, 8))), ids, ids + 2, flat)

    return make


def flat(result: Tensor) -> Tensor:
    """A row of numbers for every sample."""
    return result.flatten(1)

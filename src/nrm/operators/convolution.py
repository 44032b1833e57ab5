"""Convolutions of every kind, forward and transposed, in one to three dimensions, as linear maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nrm.operators.maps import Composed, LinearMap, WeightChange, along
from nrm.operators.products import product

_convolution = torch.ops.aten.convolution.default
_backward = torch.ops.aten.convolution_backward.default

PART = 2**22
"""Entries that a convolution is given at a time."""


@dataclass(frozen=True, eq=False)
class Convolution(LinearMap):
    """``y = conv(x, weight)`` without bias, or the transposed convolution if ``transposed``.

    ``Convolution(x.shape, y.shape, weight, stride, padding, dilation, groups)``, with a number per axis of space each.
    ``inside`` is (batch, channels, *space), or (channels, *space) for a call without a batch axis.
    """

    inside: torch.Size
    outside: torch.Size
    weight: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    @property
    def flops(self) -> float:
        entries = self.inside.numel() if self.transposed else self.outside.numel()
        return 2.0 * entries * self.weight[0].numel()

    def apply(self, x: Tensor) -> Tensor:
        if self._is_matrix:
            return self._matrix_product(self.weight.flatten(1), x, self.stride, self.outside)
        y = _by_parts(lambda part: _convolution(part, self.weight, None, *self._geometry), self._fold(x))
        return y.reshape(x.shape[0], *self.outside)

    def transpose(self, y: Tensor) -> Tensor:
        if self._is_matrix:
            near = self._matrix_product(self.weight.flatten(1).T, y, (1,) * len(self.stride), self.inside)
            return near if all(s == 1 for s in self.stride) else self._spaced(near)
        given = (self.weight, None, *self._geometry, [True, False, False])

        def gradient(part: Tensor) -> Tensor:
            # Of the input its shape alone matters, but torch would copy one that is not contiguous.
            like = part.new_empty(part.shape[0], *self.inside[-self.weight.ndim + 1 :])
            return _backward(part, like, *given)[0]  # type: ignore[no-any-return]

        return _by_parts(gradient, self._fold(y)).reshape(y.shape[0], *self.inside)

    @property
    def _is_matrix(self) -> bool:
        """Whether every position is mapped by itself, which matrix products do faster than convolutions."""
        alone = all(n == 1 for n in self.weight.shape[2:]) and not any(self.padding)
        return alone and self.groups == 1 and not self.transposed

    def _matrix_product(self, matrix: Tensor, x: Tensor, stride: tuple[int, ...], shape: torch.Size) -> Tensor:
        """The matrix at every position, or at every stride-th; positions keep their own shape."""
        if any(s != 1 for s in stride):
            x = x[(..., *(slice(None, None, s) for s in stride))]  # type: ignore[index]
        space, folded = x.shape[x.ndim - len(stride) :], self._fold(x)
        y = product(matrix, folded.flatten(2))
        return y.reshape(x.shape[0], *shape[: len(shape) - len(stride)], *space)

    def _spaced(self, x: Tensor) -> Tensor:
        """A field on every stride-th position, 0 between them."""
        wide = x.new_zeros(x.shape[0], *self.inside)
        wide[(..., *(slice(None, None, s) for s in self.stride))] = x  # type: ignore[index]
        return wide

    def bound(self, x: Tensor) -> Tensor:
        if self.transposed:
            return super().bound(x)
        norms: Tensor = torch.linalg.vector_norm(self.weight.flatten(1), dim=1)
        energy = FlatConvolution.of(self).apply(x.square())
        return energy.sqrt() * norms.view(-1, *(1,) * (self.weight.ndim - 2))  # Cauchy and Schwarz, window by window

    def reweight(self, change: WeightChange) -> Convolution:
        return replace(self, weight=change(self.weight))

    def rows(self, scale: Tensor) -> Tensor | None:
        return None if self.transposed else along(scale, self.weight.ndim - 1, self.weight)

    def weight_gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """The gradient of ``<y, conv(x)>`` with respect to the weight, for batches without a stack."""
        gradient: Tensor = _backward(y, x, self.weight, None, *self._geometry, [False, True, False])[1]
        return gradient

    def support(self) -> LinearMap:
        return FlatConvolution.of(self)

    @property
    def _geometry(self) -> tuple[list[int], list[int], list[int], bool, list[int], int]:
        space = self.weight.ndim - 2
        output_padding = list(self.output_padding) or [0] * space
        return (
            list(self.stride),
            list(self.padding),
            list(self.dilation),
            self.transposed,
            output_padding,
            self.groups,
        )

    def _fold(self, x: Tensor) -> Tensor:
        """The stack axis folded into the batch axis; without a batch axis it takes its place."""
        return x.flatten(0, 1) if len(self.inside) == self.weight.ndim else x


def _by_parts(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A function of many samples, some at a time where their tensors are large: fresh memory is slow."""
    many = max(1, PART // max(1, x[0].numel()))
    if x.shape[0] <= many:
        return function(x)
    first = function(x[:many])
    y = first.new_empty(x.shape[0], *first.shape[1:])
    y[:many] = first
    for begin in range(many, x.shape[0], many):
        y[begin : begin + many] = function(x[begin : begin + many])
    return y


def convolution_in(map: LinearMap) -> Convolution | None:
    """The convolution that a map is, also behind uneven padding."""
    map = map.then if isinstance(map, Composed) else map
    return map if isinstance(map, Convolution) else None


@dataclass(frozen=True, eq=False)
class FlatConvolution(LinearMap):
    """A convolution whose weights are all 1: channels of a group are summed, convolved once, and copied.

    That is a convolution of one channel instead of in x out channels: the Flat rule costs almost nothing.
    """

    inside: torch.Size
    outside: torch.Size
    thin: Convolution
    full: Convolution

    @classmethod
    def of(cls, full: Convolution) -> FlatConvolution:
        space = full.weight.ndim - 2
        lead = full.inside[: -space - 1]
        inside = torch.Size((*lead, full.groups, *full.inside[-space:]))
        outside = torch.Size((*lead, full.groups, *full.outside[-space:]))
        weight = full.weight.new_ones(full.groups, 1, *full.weight.shape[2:])
        return cls(full.inside, full.outside, replace(full, inside=inside, outside=outside, weight=weight), full)

    def apply(self, x: Tensor) -> Tensor:
        return self._spread(self.thin.apply(self._gather(x, self.thin.inside)), self.outside)

    def transpose(self, y: Tensor) -> Tensor:
        return self._spread(self.thin.transpose(self._gather(y, self.thin.outside)), self.inside)

    def reweight(self, change: WeightChange) -> LinearMap:
        weight = float(change(torch.ones((), dtype=torch.float64)))
        return FlatConvolution(
            self.inside, self.outside, replace(self.thin, weight=self.thin.weight * weight), self.full
        )

    @property
    def nonnegative(self) -> bool:
        return True

    @property
    def _channel(self) -> int:
        return len(self.inside) - (self.thin.weight.ndim - 2)

    def _gather(self, x: Tensor, shape: torch.Size) -> Tensor:
        sizes = (*x.shape[: self._channel], self.thin.groups, -1, *x.shape[self._channel + 1 :])
        return x.reshape(sizes).sum(self._channel + 1).reshape(x.shape[0], *shape)

    def _spread(self, x: Tensor, shape: torch.Size) -> Tensor:
        copies = shape[self._channel - 1] // self.thin.groups
        wide = x.unsqueeze(self._channel + 1)
        sizes = list(wide.shape)
        sizes[self._channel + 1] = copies
        return wide.expand(sizes).reshape(x.shape[0], *shape)

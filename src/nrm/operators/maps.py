"""The contract of a linear map, and the maps that are neither convolutions nor data movement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from nrm.errors import RuleError
from nrm.operators.products import product

WeightChange = Callable[[Tensor], Tensor]
"""A change of weights, entry by entry: the positive part, the square, ones."""


class LinearMap(ABC):
    """A linear map ``V`` from tensors of shape ``inside`` to tensors of shape ``outside``.

    Both directions take and give one leading stack axis: ``apply`` maps ``(K, *inside)`` to ``(K, *outside)``,
    ``transpose`` maps ``(K, *outside)`` to ``(K, *inside)``, and the two are adjoint. ``reweight`` gives the map
    whose entries are changed one by one; the change of an absent connection is never asked for.
    """

    inside: torch.Size
    outside: torch.Size

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor:
        """``V x`` for every element of the stack."""

    @abstractmethod
    def transpose(self, y: Tensor) -> Tensor:
        """``V^T y`` for every element of the stack."""

    @abstractmethod
    def reweight(self, change: WeightChange) -> LinearMap:
        """The map with every weight ``w`` replaced by ``change(w)``."""

    def bound(self, x: Tensor) -> Tensor:
        """At least ``|V| x`` for an ``x`` without negative entries; maps of many weights have something cheaper."""
        return self.reweight(torch.abs).apply(x)

    def support(self) -> LinearMap:
        """The map with weight 1 on every connection."""
        return self.reweight(torch.ones_like)

    def rows(self, scale: Tensor) -> Tensor | None:
        """A scale of the outputs as a scale of the weights; None where it is not one of whole rows of them."""
        return None

    @property
    def nonnegative(self) -> bool:
        """Whether all weights are known to be at least 0 without looking at them."""
        return False

    @property
    def flops(self) -> float:
        """The arithmetic of either direction, for a stack of one."""
        return 4.0 * max(self.outside.numel(), self.inside.numel())


@dataclass(frozen=True, eq=False)
class Identity(LinearMap):
    """``y = weight * x`` with one number as the weight: the block of a term that enters a sum as it is."""

    inside: torch.Size
    weight: float = 1.0

    @property
    def outside(self) -> torch.Size:  # type: ignore[override]
        return self.inside

    def apply(self, x: Tensor) -> Tensor:
        return x if self.weight == 1.0 else x * self.weight

    def transpose(self, y: Tensor) -> Tensor:
        return self.apply(y)

    def reweight(self, change: WeightChange) -> Identity:
        return Identity(self.inside, float(change(torch.tensor(self.weight, dtype=torch.float64))))


@dataclass(frozen=True, eq=False)
class Matmul(LinearMap):
    """``y = x @ C`` (or ``C @ x`` if ``left``): a constant ``C`` of two or more axes, broadcast over leading ones."""

    inside: torch.Size
    constant: Tensor
    left: bool = False

    @property
    def outside(self) -> torch.Size:  # type: ignore[override]
        x, c = self.inside, self.constant.shape
        if len(x) < 2:  # a vector, which has no leading axes and no second one
            return torch.Size((*c[:-2], c[-2 if self.left else -1]))
        last = (c[-2], x[-1]) if self.left else (x[-2], c[-1])
        leading = x[:-2]
        if leading != c[:-2]:
            leading = torch.broadcast_shapes(leading, c[:-2])  # type: ignore[no-untyped-call]
        return torch.Size((*leading, *last))

    @property
    def flops(self) -> float:
        return 2.0 * self.outside.numel() * self.constant.shape[-1 if self.left else -2]

    def apply(self, x: Tensor) -> Tensor:
        x = self._aligned(x, self.inside)
        return product(self.constant, x) if self.left else product(x, self.constant)

    def transpose(self, y: Tensor) -> Tensor:
        c = self.constant.mT
        full = product(c, y) if self.left else product(y, c)
        return full.sum_to_size(self._aligned_shape(y.shape[0], self.inside)).reshape(y.shape[0], *self.inside)

    def reweight(self, change: WeightChange) -> Matmul:
        return Matmul(self.inside, change(self.constant), self.left)

    def _aligned_shape(self, stack: int, shape: torch.Size) -> tuple[int, ...]:
        missing = max(0, self.constant.ndim - len(shape))
        return (stack, *(1,) * missing, *shape)

    def _aligned(self, x: Tensor, shape: torch.Size) -> Tensor:
        return x.reshape(self._aligned_shape(x.shape[0], shape))


class LateMatmul(Matmul):
    """A product with a constant that is formed every time it is read, as ``form`` says, and known by its shapes."""

    def __init__(
        self, inside: torch.Size, form: Callable[[], Tensor], left: bool, outside: torch.Size, flops: float
    ) -> None:
        for name, value in (
            ("inside", inside),
            ("left", left),
            ("_form", form),
            ("_outside", outside),
            ("_flops", flops),
        ):
            object.__setattr__(self, name, value)

    def formed(self, form: Callable[[], Tensor]) -> LateMatmul:
        """The product with another constant of the same shape."""
        return LateMatmul(self.inside, form, self.left, self.outside, self.flops)

    @property
    def constant(self) -> Tensor:
        return self._form()  # type: ignore[attr-defined, no-any-return]

    @property
    def outside(self) -> torch.Size:  # type: ignore[override]
        return self._outside  # type: ignore[attr-defined, no-any-return]

    @property
    def flops(self) -> float:
        return self._flops  # type: ignore[attr-defined, no-any-return]


@dataclass(frozen=True, eq=False)
class Grouped(LinearMap):
    """``y = x C_g`` on rows in groups, each with a matrix of its own; rows behind the last group have none.

    ``constant`` is ``(groups, in, out)``, and every group ends before the row in ``ends``: experts with their tokens.
    """

    inside: torch.Size
    constant: Tensor
    ends: tuple[int, ...]

    @property
    def outside(self) -> torch.Size:  # type: ignore[override]
        return torch.Size((self.inside[0], self.constant.shape[2]))

    @property
    def flops(self) -> float:
        return 2.0 * self.outside.numel() * self.constant.shape[1]

    def apply(self, x: Tensor) -> Tensor:
        return self._by_group(x, self.constant, self.outside)

    def transpose(self, y: Tensor) -> Tensor:
        return self._by_group(y, self.constant.mT, self.inside)

    def reweight(self, change: WeightChange) -> Grouped:
        return Grouped(self.inside, change(self.constant), self.ends)

    def _by_group(self, x: Tensor, matrices: Tensor, shape: torch.Size) -> Tensor:
        result = x.new_zeros(x.shape[0], *shape)
        for matrix, begin, end in zip(matrices, (0, *self.ends), self.ends, strict=False):
            if end > begin:
                result[:, begin:end] = product(x[:, begin:end], matrix)
        return result


@dataclass(frozen=True, eq=False)
class Reduce(LinearMap):
    """A sum over the axes ``dims`` times ``weight``; ``outside`` tells whether the axes were kept."""

    inside: torch.Size
    outside: torch.Size
    dims: tuple[int, ...]
    weight: float = 1.0

    def apply(self, x: Tensor) -> Tensor:
        summed = x.sum([d + 1 for d in self.dims]) if self.dims else x
        return (summed * self.weight).reshape(x.shape[0], *self.outside)

    def transpose(self, y: Tensor) -> Tensor:
        kept = [1 if d in self.dims else n for d, n in enumerate(self.inside)]
        return (y * self.weight).reshape(y.shape[0], *kept).expand(y.shape[0], *self.inside)

    def reweight(self, change: WeightChange) -> Reduce:
        weight = float(change(torch.tensor(self.weight, dtype=torch.float64)))
        return Reduce(self.inside, self.outside, self.dims, weight)

    @property
    def nonnegative(self) -> bool:
        return self.weight >= 0


@dataclass(frozen=True, eq=False)
class Centering(LinearMap):
    """The linear part of a normalization with its statistics held constant.

    Within each group of ``n`` entries the weight from i to j is ``diagonal[j]`` if i = j, else ``other[j]``. A layer
    norm with gain g (the learned weight over the standard deviation) has ``diagonal = g (1 - 1/n)`` and
    ``other = -g / n``. Groups are the axes ``dims`` of the tensor seen as ``view``.
    """

    inside: torch.Size
    view: tuple[int, ...]
    dims: tuple[int, ...]
    diagonal: Tensor
    other: Tensor

    @property
    def outside(self) -> torch.Size:  # type: ignore[override]
        return self.inside

    @classmethod
    def of(cls, gain: Tensor, view: tuple[int, ...], dims: tuple[int, ...]) -> Self:
        """The centering with the given gain, a tensor of the normalized tensor's full shape."""
        n = 1
        for d in dims:
            n *= view[d]
        return cls(gain.shape, view, dims, gain * (1 - 1 / n), -gain / n)

    def apply(self, x: Tensor) -> Tensor:
        return (self.diagonal - self.other) * x + self.other * self._group_sum(x)

    def transpose(self, y: Tensor) -> Tensor:
        return (self.diagonal - self.other) * y + self._group_sum(self.other * y)

    def reweight(self, change: WeightChange) -> Centering:
        return Centering(self.inside, self.view, self.dims, change(self.diagonal), change(self.other))

    def _group_sum(self, x: Tensor) -> Tensor:
        groups = x.reshape(x.shape[0], *self.view)
        return groups.sum([d + 1 for d in self.dims], keepdim=True).expand_as(groups).reshape(x.shape)


@dataclass(frozen=True, eq=False)
class GroupSum(LinearMap):
    """Every entry is replaced by the sum of its group: the axes ``dims`` of the tensor seen as ``view``."""

    inside: torch.Size
    view: tuple[int, ...]
    dims: tuple[int, ...]

    @property
    def outside(self) -> torch.Size:  # type: ignore[override]
        return self.inside

    def apply(self, x: Tensor) -> Tensor:
        groups = x.reshape(x.shape[0], *self.view)
        return groups.sum([d + 1 for d in self.dims], keepdim=True).expand_as(groups).reshape(x.shape)

    def transpose(self, y: Tensor) -> Tensor:
        return self.apply(y)

    def reweight(self, change: WeightChange) -> LinearMap:
        weight = float(change(torch.ones((), dtype=torch.float64)))
        return self if weight == 1 else _NumberTimes(self, weight)

    @property
    def nonnegative(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class Function(LinearMap):
    """Any linear function given as a callable: pooling, interpolation, a fold. Its transpose is its gradient.

    ``batched`` says that the first axis of ``inside`` is a batch axis that the function treats independently, so the
    stack can be folded into it. If the function acts on the last ``space`` axes alike for all samples and channels, its
    single weights can be had. ``kept`` has the axes along which it works independently, before and after it.
    """

    inside: torch.Size
    outside: torch.Size
    function: Callable[[Tensor], Tensor]
    batched: bool = True
    positive: bool = True
    name: str = "function"
    space: int = 0
    kept: tuple[tuple[int, int], ...] = ()

    def apply(self, x: Tensor) -> Tensor:
        if self.batched:
            return self.function(x.flatten(0, 1)).reshape(x.shape[0], *self.outside)
        return torch.stack([self.function(one) for one in x])

    def transpose(self, y: Tensor) -> Tensor:
        if self.batched:
            shape = (y.shape[0] * self.inside[0], *self.inside[1:])
            return self._gradient(shape, y.flatten(0, 1)).reshape(y.shape[0], *self.inside)
        return torch.stack([self._gradient(tuple(self.inside), one) for one in y])

    def reweight(self, change: WeightChange) -> LinearMap:
        probe = torch.tensor([0.5, 1.0] if self.positive else [-1.0, 0.5, 1.0], dtype=torch.float64)
        changed = change(probe)
        factor = float(changed[-1])
        if torch.equal(changed, factor * probe):  # the same change for all weights
            return self if factor == 1 else _NumberTimes(self, factor)
        return _Window(self.inside, self.outside, self.space, self.window()).reweight(change)

    def window(self) -> Tensor:
        """The matrix over the trailing axes on which the function acts alike for all samples and channels."""
        inside, outside = self.inside[-self.space :].numel(), self.outside[-self.space :].numel()
        if self.space == 0 or inside * outside > 2**24:
            raise RuleError(
                f"the rule needs the single weights of {self.name}, which are known as a whole only",
                expected="LRP0, Epsilon, or (if its weights are non-negative) Gamma, ZPlus, AlphaBeta",
                hint="give this layer another rule: rules={'LAYER': nrm.LRP0(), ...}",
            )
        units = torch.eye(inside, dtype=torch.float64).reshape(inside, 1, *self.inside[-self.space :])
        return self.function(units).reshape(inside, outside)

    @property
    def nonnegative(self) -> bool:
        return self.positive

    def _gradient(self, shape: tuple[int, ...], y: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            x = torch.zeros(shape, dtype=y.dtype, device=y.device, requires_grad=True)
            (gradient,) = torch.autograd.grad(self.function(x), x, y.clone() if y.is_inference() else y)
        return gradient


@dataclass(frozen=True, eq=False)
class Around(LinearMap):
    """A map that is made of another one, and has its shapes."""

    map: LinearMap

    @property
    def inside(self) -> torch.Size:  # type: ignore[override]
        return self.map.inside

    @property
    def outside(self) -> torch.Size:  # type: ignore[override]
        return self.map.outside


@dataclass(frozen=True, eq=False)
class _NumberTimes(Around):
    """A map times a number; the negative part of non-negative weights is 0 times the map."""

    factor: float

    def apply(self, x: Tensor) -> Tensor:
        return self.map.apply(x) * self.factor if self.factor else x.new_zeros(x.shape[0], *self.outside)

    def transpose(self, y: Tensor) -> Tensor:
        return self.map.transpose(y) * self.factor if self.factor else y.new_zeros(y.shape[0], *self.inside)

    def reweight(self, change: WeightChange) -> LinearMap:
        return self.map.reweight(lambda w: change(w * self.factor))


@dataclass(frozen=True, eq=False)
class _Window(LinearMap):
    """One matrix ``(inputs, outputs)`` over the trailing ``space`` axes, the same for all samples and channels."""

    inside: torch.Size
    outside: torch.Size
    space: int
    matrix: Tensor

    def apply(self, x: Tensor) -> Tensor:
        return product(x.flatten(-self.space), self.matrix.to(x)).reshape(x.shape[0], *self.outside)

    def transpose(self, y: Tensor) -> Tensor:
        return product(y.flatten(-self.space), self.matrix.to(y).T).reshape(y.shape[0], *self.inside)

    def reweight(self, change: WeightChange) -> LinearMap:
        changed = torch.where(self.matrix != 0, change(self.matrix), torch.zeros_like(self.matrix))
        return _Window(self.inside, self.outside, self.space, changed)


@dataclass(frozen=True, eq=False)
class Composed(LinearMap):
    """A map after a movement that puts every entry in one place: a convolution of a padded tensor.

    Its weights are the map's own, without those of entries that come from nowhere.
    """

    first: LinearMap
    then: LinearMap

    @property
    def inside(self) -> torch.Size:  # type: ignore[override]
        return self.first.inside

    @property
    def outside(self) -> torch.Size:  # type: ignore[override]
        return self.then.outside

    def apply(self, x: Tensor) -> Tensor:
        return self.then.apply(self.first.apply(x))

    def transpose(self, y: Tensor) -> Tensor:
        return self.first.transpose(self.then.transpose(y))

    def reweight(self, change: WeightChange) -> LinearMap:
        return Composed(self.first, self.then.reweight(change))

    def support(self) -> LinearMap:
        return Composed(self.first, self.then.support())

    def rows(self, scale: Tensor) -> Tensor | None:
        return self.then.rows(scale)


def along(scale: Tensor, axis: int, weight: Tensor) -> Tensor | None:
    """A scale that differs along one axis alone, counted from the end, as a scale of a weight's first axis."""
    if scale.ndim < axis or scale.numel() != scale.shape[-axis] or scale.numel() not in (1, weight.shape[0]):
        return None
    return scale.reshape(-1, *(1,) * (weight.ndim - 1))

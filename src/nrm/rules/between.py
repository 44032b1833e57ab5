"""Walks between chosen layers: what a neuron of one layer is to a neuron of the next by derivatives or perturbation.

These rules look at the network between two layers as one function F. Its unnormalized entries are gradient x
activation, integrated gradients, the effect of occlusion, or Shapley values; columns are normalized as always, so that
they make a measure with the same questions. On a single linear step with an elementwise function gradients give LRP-0;
over blocks of several layers all of them differ.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from nrm.capture import Segment
from nrm.errors import RuleError
from nrm.operators import Ends, Jacobian, LinearMap, PerSample
from nrm.rules.rules import LRP0, Factor, Key

Baseline = float | Tensor | Mapping[str, float | Tensor]
"""What stands for "nothing there": one number or tensor, or one for each layer by name (0 for those left out)."""


@dataclass(frozen=True, eq=False)
class BlockStep:
    """A step between chosen layers: its function, and activations, baseline and geometry of every tensor it reads."""

    function: Segment
    h: tuple[Tensor, ...]
    baseline: tuple[Tensor, ...]
    ends: tuple[Ends, ...]

    @property
    def effort(self) -> float:
        """The arithmetic of one call of the function."""
        return sum(node.flops for node in self.function.nodes)

    def along(self, k: int) -> Any:
        """The function of the k-th tensor, the others as far on the way from their baselines as a place says."""

        def function(x: Tensor, place: float) -> Tensor:
            others = [b + place * (h - b) for h, b in zip(self.h, self.baseline, strict=True)]
            return self.function(*others[:k], x, *others[k + 1 :])

        return function

    def jacobians(self, places: tuple[float, ...]) -> list[LinearMap]:
        """The derivatives with respect to every tensor."""
        return [
            Jacobian(ends, self.along(k), h, b, places, self.effort)
            for k, (ends, h, b) in enumerate(zip(self.ends, self.h, self.baseline, strict=True))
        ]

    @property
    def counts(self) -> list[int]:
        """How many neurons every tensor has per sample."""
        return [ends.shape[1] for ends in self.ends]

    def mixed(self, present: Tensor) -> Tensor:
        """The function's values, ``(samples, neurons above)``, with only some neurons present, the others at baseline.

        ``present`` are all neurons of all tensors, one after the other, for all samples alike.
        """
        parts = torch.split(present, self.counts)
        values = [
            torch.where(ends.fields(part.expand(1, ends.shape[0], -1), True)[0], h, b)
            for ends, part, h, b in zip(self.ends, parts, self.h, self.baseline, strict=True)
        ]
        return self.ends[0].rows(self.function(*values)[None], False)[0]

    def matrices(self, entries: Tensor) -> list[LinearMap]:
        """Entries ``(samples, neurons of all tensors, neurons above)`` as maps."""
        parts = torch.split(entries, self.counts, 1)
        return [PerSample(ends, part) for ends, part in zip(self.ends, parts, strict=True)]


@dataclass(frozen=True, repr=False, eq=False)
class Between(ABC):
    """A rule for walks between chosen layers.

    ``layers`` are the names of layers, each passed by everything that leads from the input to the output; None stands
    for the model's top-level blocks. The input and the output always belong to them.
    """

    layers: Any = None
    materialises: ClassVar[bool] = False
    """Whether all entries are formed, which takes memory."""

    @abstractmethod
    def maps(self, step: BlockStep) -> list[LinearMap]:
        """The unnormalized entries of a step, a map for each of the tensors that it reads."""

    @property
    def reference(self) -> Baseline:
        """The activations that entries are relative to."""
        return 0.0

    def __post_init__(self) -> None:
        if self.layers is None:
            return
        if isinstance(self.layers, str) or not isinstance(self.layers, Sequence):
            raise RuleError(
                "not a list of layers", got=repr(self.layers)[:80], expected="names, as ['layer1', 'layer2']"
            )
        object.__setattr__(self, "layers", tuple(map(_name, self.layers)))

    def __repr__(self) -> str:
        fields = ", ".join(f"{k}={_text(v)}" for k, v in vars(self).items())
        return f"{type(self).__name__}({fields})"


@dataclass(frozen=True, repr=False, eq=False)
class Against(Between):
    """A rule for which neurons that are not there have a ``baseline``: 0, a tensor, or one for each layer by name."""

    baseline: Baseline = 0.0

    @property
    def reference(self) -> Baseline:
        return self.baseline

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.baseline
        if isinstance(given, Mapping):
            object.__setattr__(self, "baseline", {_name(layer): value for layer, value in given.items()})
        for value in given.values() if isinstance(given, Mapping) else [given]:
            if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
                raise RuleError("not a baseline", got=repr(value)[:80], expected="a number or a tensor")
            if not bool(torch.isfinite(torch.as_tensor(value)).all()):
                raise RuleError("a baseline is not finite", got=repr(value)[:80])


@dataclass(frozen=True, repr=False, eq=False)
class Gradient(Between):
    """``h_i dF_j/dh_i``: gradient x activation between chosen layers.

    >>> import nrm
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
    >>> R = nrm.measure(model, torch.rand(1, 4), rules=nrm.Gradient(layers=["3"]))
    >>> R(R.input, R["3"].channels).shape
    torch.Size([1, 4, 6])
    """

    def maps(self, step: BlockStep) -> list[LinearMap]:
        return step.jacobians((1.0,))


@dataclass(frozen=True, repr=False, eq=False)
class IntegratedGradients(Against):
    """``(h_i - h'_i)`` times the mean of ``dF_j/dh_i`` at ``steps`` points on the way from the baseline h' to h.

    >>> import nrm
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
    >>> R = nrm.measure(model, torch.rand(1, 4), rules=nrm.IntegratedGradients(layers=["3"], steps=16))
    >>> round(float(sum(R(part.all) for part in R.inputs)), 4)
    1.0
    """

    steps: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_count("steps", self.steps)

    def maps(self, step: BlockStep) -> list[LinearMap]:
        return step.jacobians(tuple((k + 0.5) / self.steps for k in range(self.steps)))


@dataclass(frozen=True, repr=False, eq=False)
class Occlusion(Against):
    """``F_j(h) - F_j(h without i)``: what is lost if neuron i is set to its baseline.

    One forward pass of the block per neuron below, and all entries in memory.

    >>> import nrm
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
    >>> R = nrm.measure(model, torch.rand(1, 4), rules=nrm.Occlusion(layers=["3"]))
    >>> R(R.input, R["3"].channels).shape
    torch.Size([1, 4, 6])
    """

    materialises: ClassVar[bool] = True

    def maps(self, step: BlockStep) -> list[LinearMap]:
        everyone = torch.ones(sum(step.counts), dtype=torch.bool, device=step.h[0].device)
        whole, entries = step.mixed(everyone), []
        for i in range(len(everyone)):
            everyone[i] = False
            entries.append(whole - step.mixed(everyone))
            everyone[i] = True
        return step.matrices(torch.stack(entries, 1))


@dataclass(frozen=True, repr=False, eq=False)
class Shapley(Against):
    """The Shapley value of neuron i for F_j: its mean effect when neurons join the baseline in random order.

    ``samples`` orders are drawn, the same ones every time. Where all subsets of the neurons take no more forward passes
    than that, the values are exact. Columns sum to ``F_j(h) - F_j(h')`` in either case.

    >>> import nrm
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
    >>> R = nrm.measure(model, torch.rand(1, 4), rules=nrm.Shapley(layers=["3"], samples=32))
    >>> R(R.input, R["3"].channels).shape
    torch.Size([1, 4, 6])
    """

    samples: int = 64
    materialises: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_count("samples", self.samples)

    def maps(self, step: BlockStep) -> list[LinearMap]:
        count = sum(step.counts)
        exact = 2**count <= self.samples * (count + 1)
        return step.matrices(_over_subsets(step, count) if exact else self._over_orders(step, count))

    def _over_orders(self, step: BlockStep, count: int) -> Tensor:
        """The mean over orders: every drawn one, and then the same backwards."""
        generator, order = torch.Generator().manual_seed(0), torch.arange(count)
        nobody = torch.zeros(count, dtype=torch.bool, device=step.h[0].device)
        empty = step.mixed(nobody)
        total = empty.new_zeros(empty.shape[0], count, empty.shape[1])
        for n in range(self.samples):
            order = order.flip(0) if n % 2 else torch.randperm(count, generator=generator)
            present, before = nobody.clone(), empty
            for i in order.tolist():
                present[i] = True
                after = step.mixed(present)
                total[:, i] += after - before
                before = after
        return total / self.samples


def _over_subsets(step: BlockStep, count: int) -> Tensor:
    """The mean effect over all subsets of the others, each size with the same weight."""
    device = step.h[0].device
    values = {s: step.mixed(torch.tensor(s, dtype=torch.bool, device=device)) for s in _subsets(count)}
    empty = values[(False,) * count]
    total = empty.new_zeros(empty.shape[0], count, empty.shape[1])
    for present, value in values.items():
        for i in range(count):
            if not present[i]:
                joined = (*present[:i], True, *present[i + 1 :])
                total[:, i] += (values[joined] - value) / (count * math.comb(count - 1, sum(present)))
    return total


def _subsets(count: int) -> Iterator[tuple[bool, ...]]:
    return itertools.product((False, True), repeat=count)


@dataclass(frozen=True, repr=False)
class Entries(LRP0):
    """The rule of steps whose map has the entries themselves, activations included."""

    vanishes: ClassVar[bool] = False

    def factors(self, key: Key, map: LinearMap, h: Tensor, nonnegative: bool) -> list[Factor]:
        return [Factor(1.0, map)]


def _name(layer: Any) -> str:
    name = getattr(layer, "name", layer)
    if not isinstance(name, str) or getattr(layer, "consumer", None) is not None:
        raise RuleError("not a layer", got=repr(layer)[:80], expected="the name of a layer, or a layer that is no edge")
    return name


def _check_count(name: str, count: Any) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise RuleError(f"not a number of {name}", got=repr(count), expected="an integer from 1")


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"<tensor {tuple(value.shape)}>"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k!r}: {_text(v)}" for k, v in value.items()) + "}"
    return repr(list(value)) if isinstance(value, tuple) else repr(value)

"""Linear maps of a whole block of a network: by its derivatives, or by a matrix for every sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nrm.errors import RuleError
from nrm.operators.maps import LinearMap, WeightChange

LARGEST = 2**24
"""A block of which single entries are needed has at most so many."""

AFFORDABLE = 1e10
"""So much arithmetic may be spent on finding them."""


class Ends(NamedTuple):
    """The shapes on both sides of a block, and the axes along which samples lie there.

    If samples lie along an axis on both sides, a block is a matrix per sample; otherwise it is one matrix.
    """

    inside: torch.Size
    outside: torch.Size
    inner: int | None = None
    outer: int | None = None

    @property
    def apart(self) -> bool:
        """Whether samples are told apart by axes."""
        return self.inner is not None and self.outer is not None

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the matrices: samples, neurons below, neurons above."""
        batch = self.inside[self.inner] if self.apart and self.inner is not None else 1
        return batch, self.inside.numel() // batch, self.outside.numel() // batch

    def rows(self, x: Tensor, inner: bool) -> Tensor:
        """``(K, *shape)`` as ``(K, samples, neurons)``."""
        axis = (self.inner if inner else self.outer) if self.apart else None
        return (x[:, None] if axis is None else x.movedim(axis + 1, 1)).flatten(2)

    def fields(self, rows: Tensor, inner: bool) -> Tensor:
        """The way back."""
        axis, shape = (self.inner, self.inside) if inner else (self.outer, self.outside)
        if not self.apart or axis is None:
            return rows.reshape(rows.shape[0], *shape)
        rest = (n for d, n in enumerate(shape) if d != axis)
        return rows.reshape(*rows.shape[:2], *rest).movedim(1, axis + 1)

    def units(self, inner: bool) -> Iterator[Tensor]:
        """One neuron after the other, of all samples at once: 1 there and 0 elsewhere, ``(1, *shape)``."""
        batch, below, above = self.shape
        for i in range(below if inner else above):
            rows = torch.zeros(1, batch, below if inner else above)
            rows[:, :, i] = 1.0
            yield self.fields(rows, inner)


@dataclass(frozen=True, eq=False)
class PerSample(LinearMap):
    """A matrix for every sample, ``(samples, neurons below, neurons above)``; an entry of 0 is no connection."""

    ends: Ends
    matrix: Tensor

    @property
    def inside(self) -> torch.Size:  # type: ignore[override]
        return self.ends.inside

    @property
    def outside(self) -> torch.Size:  # type: ignore[override]
        return self.ends.outside

    @property
    def flops(self) -> float:
        return 2.0 * self.matrix.numel()

    def apply(self, x: Tensor) -> Tensor:
        rows = torch.einsum("kbi,bij->kbj", self.ends.rows(x, True), self.matrix.to(x.dtype))
        return self.ends.fields(rows, False)

    def transpose(self, y: Tensor) -> Tensor:
        rows = torch.einsum("kbj,bij->kbi", self.ends.rows(y, False), self.matrix.to(y.dtype))
        return self.ends.fields(rows, True)

    def reweight(self, change: WeightChange) -> PerSample:
        changed = torch.where(self.matrix != 0, change(self.matrix), torch.zeros_like(self.matrix))
        return PerSample(self.ends, changed)


@dataclass(frozen=True, eq=False)
class Jacobian(LinearMap):
    """``diag(h - h') J`` with J the mean Jacobian of a function at points between a baseline h' and h.

    ``function`` takes a tensor and the point's place on the way, from 0 at h' to 1 at h; ``places`` are the points.
    With h' = 0 and the only place 1 the entries are gradient x activation; with many, those of integrated gradients.
    Both directions are derivatives: no matrix is formed. ``effort`` is the arithmetic of one call of the function.
    """

    ends: Ends
    function: Callable[[Tensor, float], Tensor]
    h: Tensor
    baseline: Tensor
    places: tuple[float, ...] = (1.0,)
    effort: float = 0.0

    @property
    def inside(self) -> torch.Size:  # type: ignore[override]
        return self.ends.inside

    @property
    def outside(self) -> torch.Size:  # type: ignore[override]
        return self.ends.outside

    @property
    def flops(self) -> float:
        return 2.0 * self.effort * len(self.places)

    def apply(self, x: Tensor) -> Tensor:
        """Derivatives along ``x (h - h')``: the gradient of the gradient, which is linear in what it is taken of."""
        total = x.new_zeros(x.shape[0], *self.outside)
        directions = x * (self.h - self.baseline)
        for point, out in self._points():
            weight = torch.ones_like(out, requires_grad=True)
            gradient = _gradient(out, point, weight, create_graph=True)
            if gradient is not None and gradient.requires_grad:
                for k, direction in enumerate(directions):
                    along = _gradient(gradient, weight, direction)
                    total[k] += 0.0 if along is None else along
        return total / len(self.places)

    def transpose(self, y: Tensor) -> Tensor:
        """Gradients, times ``h - h'``."""
        total = y.new_zeros(y.shape[0], *self.inside)
        for point, out in self._points():
            for k, one in enumerate(y):
                gradient = _gradient(out, point, one)
                total[k] += 0.0 if gradient is None else gradient
        return total * (self.h - self.baseline) / len(self.places)

    def reweight(self, change: WeightChange) -> PerSample:
        """Needs the single entries, so that the matrices are formed after all, if they are not too large."""
        _, below, above = self.ends.shape
        self._refuse_large(min(below, above))
        return self.entries().reweight(change)

    def absolute_sums(self, marked: Tensor) -> Tensor:
        """The sums of the absolute entries of the marked columns, one gradient for each; 0 elsewhere."""
        rows = self.ends.rows(marked[None], False)[0]
        columns = rows.any(0).nonzero()[:, 0].tolist()
        self._refuse_large(len(columns))
        sums = torch.zeros(rows.shape, dtype=self.h.dtype, device=self.h.device)
        for j in columns:
            unit = torch.zeros_like(sums)
            unit[:, j] = 1.0
            entries = self.transpose(self.ends.fields(unit[None], False))
            sums[:, j] = self.ends.rows(entries, True)[0].abs().sum(1)
        return self.ends.fields(sums[None], False)[0]

    def _refuse_large(self, passes: int) -> None:
        _, below, above = self.ends.shape
        if self.ends.inside.numel() * above > LARGEST or passes * self.flops > AFFORDABLE:
            raise RuleError(
                "the single entries of a block are needed, which is known by its derivatives only",
                got=f"{below} x {above} entries per sample, {passes} passes of {self.flops:.1e} operations",
                expected=f"at most {LARGEST} entries and {AFFORDABLE:.0e} operations",
                hint="zero='sink', smaller layers, or more layers between them",
            )  # fmt: skip

    def entries(self) -> PerSample:
        """The map by its matrices."""
        _, below, above = self.ends.shape
        inner = below < above
        columns = [
            self.ends.rows(self.apply(unit) if inner else self.transpose(unit), not inner)[0]
            for unit in (u.to(self.h) for u in self.ends.units(inner))
        ]
        return PerSample(self.ends, torch.stack(columns, 1 if inner else 2))

    def _points(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The points at which derivatives are taken, and the function's values there."""
        for place in self.places:
            with torch.inference_mode(False), torch.enable_grad():
                point = (self.baseline + place * (self.h - self.baseline)).detach().clone().requires_grad_()
                out = self.function(point, place)
            yield point, out


def _gradient(out: Tensor, of: Tensor, weight: Tensor, create_graph: bool = False) -> Tensor | None:
    """The gradient of ``out * weight``; None where it does not depend on what it is taken of."""
    if not out.requires_grad:
        return None
    try:
        (found,) = torch.autograd.grad(
            out, of, weight.clone() if weight.is_inference() else weight, retain_graph=True, create_graph=create_graph,
            allow_unused=True,
        )  # fmt: skip
    except RuntimeError as error:
        raise RuleError(
            "a block cannot be differentiated", got=str(error).splitlines()[0][:160],
            hint="nrm.Occlusion or nrm.Shapley need no derivatives",
        ) from error  # fmt: skip
    return found

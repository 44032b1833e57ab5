"""The laws that every linear map, rule, op and measure has to obey, as plain functions."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nrm.capture import Node, OwnOp, reads, replay
from nrm.measure import Measure, measure
from nrm.operators import Convolution, Dense, LinearMap, WeightChange
from nrm.questions import Layer
from nrm.rules import NEGATIVE, POSITIVE, Rule


def materialize(map: LinearMap, dtype: torch.dtype = torch.float64) -> Tensor:
    """The matrix of a linear map, ``(outputs, inputs)``, by applying it to every unit vector."""
    size = map.inside.numel()
    units = torch.eye(size, dtype=dtype).reshape(size, *map.inside)
    return map.apply(units).reshape(size, -1).T.contiguous()


def check_map(map: LinearMap, *, stack: int = 3, tolerance: float = 1e-10) -> None:
    """A map is linear, its two directions are adjoint, and changed weights are changed entry by entry.

    >>> check_map(Dense(torch.Size([2, 3]), torch.ones(4, 3, dtype=torch.float64)))
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(stack, *map.inside, dtype=torch.float64, generator=generator)
    y = torch.randn(stack, *map.outside, dtype=torch.float64, generator=generator)
    up, down = map.apply(x), map.transpose(y)
    _same("shape of apply", torch.tensor(up.shape), torch.tensor(y.shape), 0)
    _same("shape of transpose", torch.tensor(down.shape), torch.tensor(x.shape), 0)
    left, right = (up * y).flatten(1).sum(1), (x * down).flatten(1).sum(1)
    _same("adjoint identity <V x, y> = <x, V^T y>", left, right, tolerance * _size(up) * y.numel())
    _same("additivity", map.apply(x + 2 * x.roll(1, 0)), up + 2 * up.roll(1, 0), tolerance * _size(up))
    _same("stack against single", map.apply(x[1:2]), up[1:2], tolerance * _size(up))
    matrix = materialize(map)
    _same("matrix", (x.reshape(stack, -1) @ matrix.T).reshape(up.shape), up, tolerance * _size(up))
    changes: dict[str, WeightChange] = {"positive part": lambda w: w.clamp(min=0), "absolute": torch.abs}
    for name, change in changes.items():
        _same(name, materialize(map.reweight(change)), change(matrix), tolerance * _size(matrix))


def check_rule(rule: Rule, *, tolerance: float = 1e-9) -> None:
    """A rule's factors agree with themselves in both directions, follow scales as their keys say, and normalize to 1.

    >>> from nrm.rules import Gamma
    >>> check_rule(Gamma(0.5))
    """
    generator = torch.Generator().manual_seed(1)
    for signed in (False, True):
        h = torch.randn(2, 4, dtype=torch.float64, generator=generator)
        h = h if signed else h.abs()
        weight = torch.randn(4, 4, dtype=torch.float64, generator=generator)
        map = Dense(h.shape, weight)
        _check_scale(rule, map, h, signed, tolerance)
        for key in rule.keys:
            fast, slow = (_dense(rule, key, map, h, nonnegative) for nonnegative in (not signed, False))
            for group in slow:
                _same(f"{rule!r}: the shortcut for non-negative inputs", fast[group], slow[group], tolerance)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).double()
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64) / 3
    for bias in ("ignore", "input"):
        x = torch.randn(3, 8, dtype=torch.float64, generator=generator)
        check_measure(measure(model, x, rules=rule, bias=bias), tolerance=1e-7)


def check_op(function: Callable[[Tensor], Tensor], example: Tensor, *, tolerance: float = 1e-8) -> None:
    """A function of one tensor, or a module, can be captured inside a network, and the laws hold across it.

    What an op of one's own says of its entries is compared with what its call makes of other inputs.

    >>> check_op(torch.tanh, torch.randn(2, 3, generator=torch.Generator().manual_seed(0)))
    """
    if isinstance(function, nn.Module):
        function = copy.deepcopy(function).double()
    model = _TestedNetwork(function, example.double())
    with torch.no_grad():
        plain = model(example.double())
    R = measure(model, example.double(), rules="lrp-0", bias="input")
    _same("the recorded value", R.values(R.output), plain, tolerance * _size(plain))
    check_measure(R, tolerance=tolerance)
    for node in R.inner.tape.nodes:
        if isinstance(node.op, OwnOp) and not (node.op.holds and node.recall is None):
            _check_field(node, R.inner.tape.nodes, tolerance)


def _check_field(node: Node, nodes: Sequence[Node], tolerance: float) -> None:
    """Entries of an own op do not follow inputs that they are said not to be made of."""
    generator, below = torch.Generator().manual_seed(3), [nodes[i].value for i in node.inputs]
    for entry in range(min(node.value.numel(), 8)):
        marks = torch.zeros(node.value.numel(), dtype=node.value.dtype)
        marks[entry] = 1.0
        fields = node.op.field(marks.view(1, *node.shape), below)
        if fields is None:
            return
        values = {i: nodes[i].value[None] for i in reads(node)}
        for i in values:
            noise = torch.randn(values[i].shape, generator=generator, dtype=torch.float64).to(values[i])
            read = [field != 0 for field, j in zip(fields, node.inputs, strict=True) if i == j]
            free = ~torch.stack(read).any(0) if read else torch.zeros_like(noise, dtype=torch.bool)
            values[i] = values[i] + noise * free
        again, value = replay(node, values).reshape(-1)[entry], node.value.reshape(-1)[entry]
        what = f"{type(node.op).__name__}: an entry that is said not to be made of what was changed"
        _same(what, again, value, tolerance * _size(value))


def check_measure(R: Measure, *, tolerance: float = 1e-8) -> None:
    """The laws on one measure: every cut has mass 1, and tables agree from both directions."""
    found = R.check(strict=False)
    scale = max(1.0, max((max(v) for v in found.variation.values()), default=1.0))
    error = found.cut_error or 0.0
    assert error <= tolerance * scale, f"the mass of the cut at {found.worst_cut} is off by {error:.2g}"
    _same("mass of the input cut", torch.tensor(found.mass), torch.ones(len(found.mass)), tolerance * scale)
    layers = [Layer(row.name) for row in R.layers if row.kind in ("activation", "input", "max")][:3]
    for low, high in itertools.pairwise(layers):
        pairs, back = R(low.channels, high.channels), R(high.channels, low.channels).transpose(1, 2)
        _same(f"pairs of {low!r} and {high!r} from both sides", pairs, back, tolerance * scale)
        one = torch.stack([R(low.channel(0), high.channel(j)) for j in range(pairs.shape[2])], 1)
        _same(f"pairs of {low!r} and {high!r} one by one", pairs[:, 0], one, tolerance * scale)


class _TestedNetwork(nn.Module):
    """A function between two linear layers."""

    def __init__(self, function: Callable[[Tensor], Tensor], example: Tensor) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        width = example.shape[-1]
        self.function = function
        self.first = nn.Linear(width, width).double()
        with torch.no_grad():
            inner = function(example)
        self.last = nn.Linear(inner.reshape(len(inner), -1).shape[1], 3).double()
        for p in (*self.first.parameters(), *self.last.parameters()):
            p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64) / p.shape[-1] ** 0.5

    def forward(self, x: Tensor) -> Tensor:
        """first, function, flatten, last."""
        result: Tensor = self.last(self.function(self.first(x)).flatten(1))
        return result


def _dense(rule: Rule, key: Any, map: LinearMap, h: Tensor, nonnegative: bool) -> dict[int, Tensor]:
    """The rule's unnormalized matrix of one key, per group, for the first row of a dense step."""
    total: dict[int, Tensor] = {}
    for factor in rule.factors(key, map, h, nonnegative):
        a = factor.a[0] if isinstance(factor.a, Tensor) else factor.a
        matrix = materialize(Dense(h.shape[1:], _weights(factor.map))) * a
        total[factor.group] = total[factor.group] + matrix if factor.group in total else matrix
    return total


def _weights(map: LinearMap) -> Tensor:
    return map.weight if isinstance(map, Dense | Convolution) else torch.eye(map.inside[-1], dtype=torch.float64)


def _check_scale(rule: Rule, map: Dense, h: Tensor, signed: bool, tolerance: float) -> None:
    """Keys keep their promise: weights ``s W`` give entries that scale with ``s**p``, or swap signs if s < 0."""
    for scale in (2.0, -2.0):
        scaled_map = Dense(map.inside, scale * map.weight)
        for key in rule.keys:
            direct = _dense(rule, key, scaled_map, h, not signed)
            if key[0] == "power":
                source, factor = key, scale ** key[1]
            else:
                swapped = NEGATIVE if key == POSITIVE else POSITIVE
                source, factor = (key if scale > 0 else swapped), abs(scale)
            promised = _dense(rule, source, map, h, not signed)
            for group, entries in direct.items():
                _same(f"{rule!r}: {key} under scale {scale}", entries, factor * promised[group], tolerance)


def _same(what: str, left: Tensor, right: Tensor, tolerance: float) -> None:
    assert left.shape == right.shape, f"{what}: shape {tuple(left.shape)} against {tuple(right.shape)}"
    difference = float((left - right).abs().max()) if left.numel() else 0.0
    assert difference <= tolerance, f"{what}: differs by {difference:.3g}, allowed {tolerance:.3g}"


def _size(t: Tensor) -> float:
    return max(1.0, float(t.abs().max())) if t.numel() else 1.0

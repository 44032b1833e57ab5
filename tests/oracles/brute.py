"""The slow truth: every walk of a tiny network, one by one.

Written from the definitions alone (`semantics.md`, the paper's section 3 and Appendices A and B) and shares no code
with the library: dense float64 matrices, one sample, loops. Two independent readings of the same network live here,
the list of all walks (:func:`walks`) and the explicit proper network with its copies (:class:`Proper`), and each is
checked against the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EPS = torch.finfo(torch.float64).eps
Walk = tuple[tuple[str, int], ...]  # (tensor, neuron), from a source to the output
Site = str | tuple[str, str]  # a tensor, or its copy on the way to one consumer


class TooManyWalks(Exception):
    """Brute force would take too long: draw a smaller network."""


class ZeroColumn(Exception):
    """A reached column without mass, under `zero="error"`."""


# --- rules: the unnormalized entries of one block ---


@dataclass(frozen=True)
class Rule:
    """A rule by its name and up to two parameters: gamma; alpha, beta; low, high; epsilon."""

    kind: str = "lrp0"
    p: float = 0.0
    q: float = 0.0

    def entries(self, h: Tensor, w: Tensor, support: Tensor) -> Tensor:
        """T (in x out) of activations `h` and weights `w`, whose possible connections are `support`."""
        z = h[:, None] * w
        match self.kind:
            case "lrp0" | "alphabeta":  # alpha-beta splits the signs later, over the whole column
                return z
            case "gamma":
                return z + self.p * z.clamp(min=0)
            case "zplus":
                return z.clamp(min=0)
            case "flat":
                return support.double()
            case "wsquare":
                return w**2
            case "zbox":
                return z - self.p * w.clamp(min=0) - self.q * w.clamp(max=0)
            case "entry":
                return (z + self.p) * support
            case "pass":
                return torch.eye(*w.shape, dtype=torch.float64)
        raise ValueError(self.kind)

    def shift(self, b: Tensor) -> Tensor:
        """What a bias puts into its column: a weight from a neuron of activation 1, none where weights play no part."""
        if self.kind in ("flat", "zbox", "pass"):
            return torch.zeros_like(b)
        return self.entries(torch.ones(1, dtype=torch.float64), b[None], torch.ones(1, len(b), dtype=torch.bool))[0]


LRP0 = Rule("lrp0")


@dataclass(frozen=True)
class Block:
    """One parent's part of a step. `via` are tensors inside the step, each with the column of its first neuron."""

    parent: str
    weight: Tensor  # in x out
    rule: Rule | None = LRP0  # None: the weights are the shares themselves (selection, product)
    via: tuple[tuple[str, int], ...] = ()
    alpha: float = 1.0
    support: Tensor | None = None


@dataclass(frozen=True)
class Share:
    """A block after normalization: R(neuron of parent | neuron of the step's tensor)."""

    parent: str
    via: tuple[tuple[str, int], ...]
    matrix: Tensor


# --- the network ---


class Network:
    """Sources and steps in the order of the forward pass, with the values of one sample."""

    def __init__(self, *, bias: str = "ignore", zero: str = "sink") -> None:
        self.bias, self.zero = bias, zero
        self.values: dict[str, Tensor] = {}
        self.shares: dict[str, list[Share]] = {}  # of every tensor that is not a source
        self.dead: dict[str, Tensor] = {}  # columns without mass
        self.proportional: dict[str, bool] = {}  # whether columns sum to the value: then none is without mass
        self.condition: dict[str, Tensor] = {}  # sum |T| / |z| of the others
        self.output = ""
        self.relevance = torch.zeros(0)

    def source(self, name: str, value: Tensor) -> None:
        """An input, wherever it enters: user input, parameter, bias, sink."""
        self.values[name] = value.detach().double().flatten()

    def step(
        self,
        name: str,
        blocks: Sequence[Block],
        value: Tensor,
        shift: Tensor | None = None,
        channel: Tensor | None = None,
    ) -> None:
        """One column per neuron of `name`, all blocks and the bias normalized together, once."""
        width = value.numel()
        supports = [b.weight != 0 if b.support is None else b.support for b in blocks]
        rule = next((b.rule for b in blocks if b.rule), LRP0)
        parts = [
            b.alpha * (b.rule.entries(self.values[b.parent], b.weight, s) if b.rule else b.weight)
            for b, s in zip(blocks, supports, strict=True)
        ]
        if self.bias == "input" and shift is not None:
            parts.append(rule.shift(shift)[None])  # a single row: one bias neuron per column, gathered below
        if rule.kind == "alphabeta":
            parts = _alpha_beta(parts, rule.p, rule.q)
        z, absolute = sum(p.sum(0) for p in parts), sum(p.abs().sum(0) for p in parts)
        exact = all(b.rule is not None and b.rule.kind == "lrp0" and b.alpha == 1 for b in blocks)
        self.proportional[name] = exact and (self.bias == "input" or shift is None or not bool(shift.any()))
        self.dead[name] = dead = z.abs() <= 8 * EPS * absolute
        self.condition[name] = torch.where(dead, 1.0, absolute / torch.where(dead, 1.0, z.abs()))
        parts = [torch.where(dead, 0.0, p / torch.where(dead, 1.0, z)) for p in parts]
        if self.zero == "uniform":
            field = sum(s.double().sum(0) for s in supports)
            parts[: len(blocks)] = [
                torch.where(dead, s.double() / field, p) for s, p in zip(supports, parts, strict=False)
            ]
        self.shares[name] = [Share(b.parent, b.via, p) for b, p in zip(blocks, parts, strict=False)]
        if len(parts) > len(blocks):
            channel = torch.arange(width) if channel is None else channel
            rows = torch.zeros(int(channel.max()) + 1, width, dtype=torch.float64)
            rows[channel, torch.arange(width)] = parts[-1][0]
            self._late(name, "bias", rows)
        if self.zero == "sink" and dead.any():
            self._late(name, "sink", torch.diag(dead.double()))
        self.source(name, value)  # last: the order of `values` is the order of the walks

    def _late(self, name: str, kind: str, rows: Tensor) -> None:
        """A source that enters at one step; of the k-th call of a module it is called `cell.bias#k`."""
        base, mark, call = name.partition("#")
        late = f"{base}.{kind}{mark}{call}"
        self.source(late, torch.ones(len(rows)))
        self.shares[name].append(Share(late, (), rows))

    def affine(
        self, name: str, blocks: Sequence[Block], shift: Tensor | None = None, channel: Tensor | None = None
    ) -> None:
        """A (fused) additive step: the forward value follows from the blocks, so a wrong matrix shows in the output."""
        value = sum(self.values[b.parent] @ b.weight for b in blocks)
        self.step(name, blocks, value if shift is None else value + shift, shift, channel)

    def each(self, name: str, parent: str, function: Callable[[Tensor], Tensor]) -> None:
        """An elementwise function with phi(0) = 0: one-to-one, whatever the values."""
        value = function(self.values[parent])
        self.step(name, [Block(parent, torch.eye(len(value), dtype=torch.float64), None)], value)

    def move(self, name: str, parents: Sequence[str], index: Tensor) -> None:
        """Data movement and max pooling: neuron j is number index[j] of the concatenated parents."""
        joined = torch.cat([self.values[p] for p in parents])
        select = torch.zeros(len(joined), len(index), dtype=torch.float64)
        select[index, torch.arange(len(index))] = 1.0
        rows = select.split([len(self.values[p]) for p in parents])
        # A step whose shares are fixed: zero columns of one parent are the other parent's, never dead.
        self.step(name, [Block(p, r, None) for p, r in zip(parents, rows, strict=True)], joined[index])

    def product(self, name: str, factors: Mapping[str, float]) -> None:
        """u * v: shared as the coefficients say, whatever the values."""
        values = [self.values[p] for p in factors]
        eye = torch.eye(len(values[0]), dtype=torch.float64)
        blocks = [Block(p, eye, None, alpha=a) for p, a in factors.items()]
        self.step(name, blocks, torch.stack(values).prod(0))

    def explain(self, output: str, target: int | str) -> Network:
        """The output relevance: one neuron, or spread by the values ("logits") or their softmax."""
        value = self.values[output]
        self.output, self.relevance = output, torch.zeros_like(value)
        if target == "logits":
            self.relevance = value / value.sum()
        elif target == "softmax":
            self.relevance = value.softmax(0)
        else:
            self.relevance[target] = 1.0
        return self


def _alpha_beta(parts: list[Tensor], alpha: float, beta: float) -> list[Tensor]:
    """Positive and negative parts pooled over the whole column, all blocks and the bias together."""
    up = sum(p.clamp(min=0).sum(0) for p in parts)
    down = sum(p.clamp(max=0).sum(0) for p in parts)
    up, down = torch.where(up == 0, 1.0, up), torch.where(down == 0, 1.0, down)
    return [alpha * p.clamp(min=0) / up - beta * p.clamp(max=0) / down for p in parts]


# --- walks ---


def walks(network: Network, limit: int = 20_000) -> list[tuple[Walk, float]]:
    """Every walk with its relevance: the product of the column entries along it times the output relevance."""
    columns: dict[tuple[str, int], list[tuple[Walk, float]]] = {}
    counts: dict[tuple[str, int], int] = {}
    for name in network.values:  # in forward order: parents first
        shares = [(s, s.matrix.T.tolist()) for s in network.shares.get(name, ())]
        for j in range(len(network.values[name])):
            if not shares:
                counts[name, j] = 1
                continue
            columns[name, j] = [
                (((s.parent, i), *((name, j - first) for name, first in s.via)), entry)
                for s, matrix in shares
                for i, entry in enumerate(matrix[j])
                if entry != 0
            ]
            counts[name, j] = sum(counts[prefix[0]] for prefix, _ in columns[name, j])
    roots = [(network.output, j) for j in network.relevance.nonzero().flatten().tolist()]
    if sum(counts[root] for root in roots) > limit:
        raise TooManyWalks
    found = []
    todo = [((root,), float(network.relevance[root[1]])) for root in roots]
    while todo:
        suffix, relevance = todo.pop()
        if suffix[0] not in columns:
            found.append((suffix, relevance))
            continue
        if network.zero == "error" and network.dead[suffix[0][0]][suffix[0][1]]:
            raise ZeroColumn(suffix[0])
        todo += [(prefix + suffix, relevance * entry) for prefix, entry in columns[suffix[0]]]
    return found


def position(walk: Walk, site: Site) -> int | None:
    """The neuron in which a walk crosses a tensor or an edge, None if it bypasses it."""
    if isinstance(site, str):
        return next((neuron for tensor, neuron in walk if tensor == site), None)
    return next((n for (a, n), (b, _) in itertools.pairwise(walk) if (a, b) == site), None)


Event = Callable[[Walk], bool]


def at(site: Site, neurons: Sequence[int] | None = None) -> Event:
    """Walks that cross `site`, in one of `neurons` if given."""
    return lambda walk: (n := position(walk, site)) is not None and (neurons is None or n in neurons)


def avoid(site: Site, neurons: Sequence[int] | None = None) -> Event:
    """All other walks, those that bypass `site` among them."""
    return lambda walk: not at(site, neurons)(walk)


def measure(found: Sequence[tuple[Walk, float]], *events: Event) -> float:
    """The relevance of all walks for which every event is true."""
    return sum(relevance for walk, relevance in found if all(event(walk) for event in events))


def conditional(found: Sequence[tuple[Walk, float]], events: Sequence[Event], given: Sequence[Event]) -> float:
    """R(A | B) = R(A, B) / R(B), and 0 where R(B) = 0."""
    whole = measure(found, *given)
    return measure(found, *events, *given) / whole if whole else 0.0


def table(found: Sequence[tuple[Walk, float]], variables: Sequence[tuple[Site, Tensor]], *events: Event) -> Tensor:
    """An axis per variable: a site with the label of each of its neurons (-1: left out)."""
    numbers = [labels.tolist() for _, labels in variables]
    sums: dict[tuple[int, ...], float] = {}
    for walk, relevance in found:
        places = [position(walk, site) for site, _ in variables]
        if None in places or not all(event(walk) for event in events):
            continue
        index = tuple(labels[n] for n, labels in zip(places, numbers, strict=True))
        if -1 not in index:
            sums[index] = sums.get(index, 0.0) + relevance
    result = torch.zeros([max(labels) + 1 for labels in numbers], dtype=torch.float64)
    for index, total in sums.items():
        result[index] = total
    return result


# --- the proper network of Appendix A ---


class Proper:
    """The same network with materialised copies: every walk has one neuron in every layer, no skip, no late input.

    Sources move to layer 0. On its way from a parent to a step, a neuron is copied through all layers in between;
    steps are two layers apart, so that even the shortest way has one copy, which says which block the walk takes.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.level: dict[str, int] = {}
        for name in network.values:
            parents = [self.level[s.parent] for s in network.shares.get(name, [])]
            self.level[name] = 2 + max(parents) if parents else 0
        self.layers: list[list[tuple[object, int]]] = [[] for _ in range(self.level[network.output] + 1)]
        for name, level in self.level.items():
            if level < len(self.layers) - 1 or name == network.output:
                self.layers[level] += [(name, i) for i in range(len(network.values[name]))]
            for k, share in enumerate(network.shares.get(name, [])):
                for between in range(self.level[share.parent] + 1, min(level, len(self.layers))):
                    self.layers[between] += [((name, k), i) for i in range(len(share.matrix))]
        self.matrices = [self._matrix(level) for level in range(1, len(self.layers))]

    def _matrix(self, level: int) -> Tensor:
        """R(layer - 1 | layer), each column summing to 1."""
        row = {neuron: r for r, neuron in enumerate(self.layers[level - 1])}
        matrix = torch.zeros(len(row), len(self.layers[level]), dtype=torch.float64)
        for column, (place, j) in enumerate(self.layers[level]):
            if isinstance(place, str):
                for k, share in enumerate(self.network.shares[place]):
                    for i, entry in enumerate(share.matrix[:, j].tolist()):
                        matrix[row[(place, k), i], column] = entry
            else:
                parent = self.network.shares[place[0]][place[1]].parent
                matrix[row[(parent, j) if self.level[parent] == level - 1 else (place, j)], column] = 1.0
        return matrix

    def _ways(self, site: Site) -> Iterator[dict[int, Callable[[object, int, Sequence[int] | None], bool]]]:
        """How a walk can cross a site: as a tensor of its own, on a copy, or inside a step's block; masks by layer."""
        if isinstance(site, str) and self.level.get(site, len(self.layers)) < len(self.layers):
            yield {self.level[site]: lambda place, i, s: place == site and (s is None or i in s)}
        for name, shares in self.network.shares.items():
            for k, share in enumerate(shares):
                chain = ((share.parent, None), *share.via, (name, 0))  # None: the parent's own neuron, not the column's
                hits = [
                    first
                    for (a, first), (b, _) in itertools.pairwise(chain)
                    if (site == a and first is not None if isinstance(site, str) else site == (a, b))
                ]
                if not hits or self.level[name] >= len(self.layers):
                    continue
                yield {
                    self.level[name] - 1: lambda p, i, s, w=(name, k), f=hits[0]: (
                        p == w and (s is None or f is not None or i in s)
                    ),
                    self.level[name]: lambda p, j, s, n=name, f=hits[0]: (
                        p == n and (s is None or f is None or j - f in s)
                    ),
                }

    def measure(self, events: Mapping[Site, Sequence[int] | None]) -> float:
        """Joint relevance by plain message passing: mask, multiply, next layer; ways of one site are disjoint."""
        total = 0.0
        for ways in itertools.product(*([(way, s) for way in self._ways(site)] for site, s in events.items())):
            message = self.network.relevance
            for level in range(len(self.layers) - 1, -1, -1):
                for way, neurons in ways:
                    if level in way:
                        keep = [way[level](place, i, neurons) for place, i in self.layers[level]]
                        message = message * torch.tensor(keep, dtype=torch.float64)
                if level:
                    message = self.matrices[level - 1] @ message
            total += float(message.sum())
        return total

"""The oracle's side of a torch module: its ops translated by hand into the blocks of :mod:`oracles.brute`.

Matrices come from unit vectors, batch norms from their formula. The names are the library's names, so that a question
can be put to both sides as it stands.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oracles.brute import Block, Network, Rule

# --- rules, for both sides ---

RULES: dict[str, tuple[str, tuple[float, ...], Rule]] = {
    "lrp0": ("LRP0", (), Rule("lrp0")),
    "epsilon": ("Epsilon", (), Rule("lrp0")),
    "gamma": ("Gamma", (0.25,), Rule("gamma", 0.25)),
    "zplus": ("ZPlus", (), Rule("zplus")),
    "alpha2beta1": ("AlphaBeta", (2, 1), Rule("alphabeta", 2, 1)),
    "alpha1beta0": ("AlphaBeta", (1, 0), Rule("alphabeta", 1, 0)),
    "alpha3beta1": ("AlphaBeta", (3, 1), Rule("alphabeta", 3, 1)),
    "flat": ("Flat", (), Rule("flat")),
    "wsquare": ("WSquare", (), Rule("wsquare")),
    "zbox": ("ZBox", (-3.0, 3.0), Rule("zbox", -3.0, 3.0)),
    "entry": ("EntryEpsilon", (1e-3,), Rule("entry", 1e-3)),
}


AVERAGES = (nn.AvgPool1d, nn.AvgPool2d)


@dataclass(frozen=True)
class Rules:
    """A rule for every step that adds (linear, lone norm, sum), or rules by module path; average pools have LRP-0."""

    everywhere: str
    layers: Mapping[str, str] = field(default_factory=dict)

    def brute(self, layer: str) -> Rule:
        return RULES[self.layers.get(layer.split("#")[0], self.everywhere)][2]

    def library(self, model: nn.Module) -> object:
        """The same choice as the argument `rules=` of the library.

        Everywhere is the pattern `*`: a bare rule leaves lone norms and bare sums to the library's defaults. With
        rules per layer there is no such pattern, so that an identity takes the rule of the branch it joins.
        """
        import nrm  # the oracle's own tests must run without the library

        if self.layers and self.everywhere != "lrp0":
            raise ValueError("layers without a rule of their own have LRP-0")
        pools = {name: "lrp0" for name, m in model.named_modules() if isinstance(m, AVERAGES)}
        chosen = self.layers or pools | {"*": self.everywhere}
        return {layer: getattr(nrm, RULES[key][0])(*RULES[key][1]) for layer, key in chosen.items()}


# --- the oracle's side: translating ops by hand ---


@dataclass(frozen=True)
class Term:
    """A term of a fused sum, with the names of all tensors from its parent up to the sum."""

    parent: str
    weight: Tensor
    support: Tensor
    names: tuple[tuple[str, int], ...]  # with the column of each tensor's first neuron
    shift: Tensor | None = None
    rule: Rule | None = None  # None: an identity, takes the rule of the branch it joins


Dense = tuple[Tensor, Tensor | None, Tensor, tuple[int, ...]]
Matrices = dict[tuple[str, tuple[int, ...]], Dense]


def matrix(module: nn.Module, shape: tuple[int, ...]) -> Dense:
    """An affine module as a dense matrix by unit vectors: weights, shift, possible connections, output shape."""
    bare = copy.deepcopy(module).double().requires_grad_(False)
    bias = getattr(bare, "bias", None)
    if bias is not None:
        bare.bias = None
    units = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    out = bare(units)
    weight = out.flatten(1)
    if hasattr(bare, "weight"):
        bare.weight.fill_(1.0)
    support = bare(units).flatten(1) != 0
    if bias is not None:
        wide = bias if isinstance(bare, nn.Linear) else bias.reshape(-1, *[1] * (out.dim() - 2))
        bias = wide.expand(out.shape[1:]).flatten()
    return weight, bias, support, tuple(out.shape[1:])


@dataclass
class Twin:
    """Builds the oracle's network beside the torch module, op by op, in the library's names."""

    model: nn.Module
    net: Network
    rules: Rules
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    channels_last: bool = False
    matrices: Matrices = field(default_factory=dict)  # of modules; they are the same for every sample

    def source(self, name: str, value: Tensor) -> str:
        self.shapes[name] = tuple(value.shape)
        self.net.source(name, value)
        return name

    def branch(self, parent: str, *path: str | tuple[str, float]) -> Term:
        """A linear step and what is folded into it, see :meth:`through`."""
        key = path[0], self.shapes[parent]
        if key not in self.matrices:
            self.matrices[key] = matrix(self._module(path[0]), self.shapes[parent])
        weight, shift, support, shape = self.matrices[key]
        rule = RULES["lrp0"][2] if isinstance(self._module(path[0]), AVERAGES) else self.rules.brute(path[0])
        self.shapes[path[0]] = shape
        return self.through(Term(parent, weight, support, ((path[0], 0),), shift, rule), *path[1:])

    def identity(self, parent: str, *path: str | tuple[str, float]) -> Term:
        eye = torch.eye(math.prod(self.shapes[parent]), dtype=torch.float64)
        return self.through(Term(parent, eye, eye != 0, ()), *path)

    def through(self, term: Term, *path: str | tuple[str, float]) -> Term:
        """Folds batch norms (by name) and constant factors (name, factor) into a term; other names change nothing."""
        for step in path:
            name, factor = (step, 1.0) if isinstance(step, str) else step
            self.shapes.setdefault(name, self.shapes[term.names[-1][0] if term.names else term.parent])
            scale, offset = torch.as_tensor(factor).double(), None
            if isinstance(norm := self._module(name), nn.modules.batchnorm._BatchNorm):
                scale, offset = self._norm(norm, self.shapes[name])
            shift = None if term.shift is None else term.shift * scale
            if offset is not None:
                shift = offset if shift is None else shift + offset
            term = replace(term, weight=term.weight * scale, shift=shift, names=(*term.names, (name, 0)))
        return term

    def joined(self, name: str, *terms: Term) -> list[Term]:
        """A concatenation inside a fused step: each term keeps its own columns."""
        widths = [t.weight.shape[1] for t in terms]
        self.shapes[name] = (sum(widths),)
        found = []
        for k, t in enumerate(terms):
            first, rest = sum(widths[:k]), sum(widths[k + 1 :])
            names = (*((n, at + first) for n, at in t.names), (name, 0))
            shift = None if t.shift is None else F.pad(t.shift, (first, rest))
            weight, support = F.pad(t.weight, (first, rest)), F.pad(t.support, (first, rest))
            found.append(Term(t.parent, weight, support, names, shift, t.rule))
        return found

    def along(self, term: Term, pairs: Sequence[tuple[int, int]], weights: Sequence[float], *path: str) -> list[Term]:
        """A term on every edge of a graph, node to node; `path` are tensors of edges, the last one of nodes."""
        count, width = self.shapes[term.names[-1][0] if term.names else term.parent]
        self.shapes |= dict.fromkeys(path[:-1], (len(pairs), width)) | {path[-1]: (count, width)}
        found = []
        for e, ((source, target), weight) in enumerate(zip(pairs, weights, strict=True)):
            to = torch.zeros(count, count, dtype=torch.float64)
            to[source, target] = 1.0
            to = torch.kron(to, torch.eye(width, dtype=torch.float64))
            inside = ((name, at + (target - source) * width) for name, at in term.names)
            names = (*inside, *((name, (target - e) * width) for name in path[:-1]), (path[-1], 0))
            shift = None if term.shift is None else term.shift @ to * weight
            support = term.support.double() @ to != 0
            found.append(Term(term.parent, term.weight @ to * weight, support, names, shift, term.rule))
        return found

    def max_along(self, parent: str, pairs: Sequence[tuple[int, int]], copied: str, name: str) -> str:
        """The largest of a node's neighbours, channel by channel; of equal ones the first edge."""
        count, width = self.shapes[parent]
        rows = torch.tensor([[source * width + c for c in range(width)] for source, _ in pairs])
        self.shapes |= {copied: (len(pairs), width), name: (count, width)}
        self.net.move(copied, [parent], rows.flatten())
        value = self.net.values[copied].reshape(-1, width)
        arriving = [[e for e, (_, target) in enumerate(pairs) if target == node] for node in range(count)]
        best = [max(mine, key=lambda e: (value[e, c], -e)) * width + c for mine in arriving for c in range(width)]
        self.net.move(name, [copied], torch.tensor(best))
        return name

    def fuse(self, name: str, *terms: Term, shift: Tensor | None = None) -> str:
        """One jointly normalized step; `name` is its final tensor, every other name lies inside."""
        rule = next((t.rule for t in terms if t.rule), None) or self.rules.brute(name)
        shifts = [s for s in (*(t.shift for t in terms), shift) if s is not None]
        self.shapes.setdefault(name, self.shapes[terms[0].names[-1][0] if terms[0].names else terms[0].parent])
        blocks = [
            Block(t.parent, t.weight, t.rule or rule, tuple(v for v in t.names if v[0] != name), 1.0, t.support)
            for t in terms
        ]
        self.net.affine(name, blocks, sum(shifts) if shifts else None, self._channel(name))
        return name

    def linear(self, parent: str, *path: str | tuple[str, float]) -> str:
        term = self.branch(parent, *path)
        return self.fuse(term.names[-1][0], term)

    def norm(self, name: str, *terms: Term) -> str:
        """A batch norm of what is no single linear step: a concatenation, or a value of its own."""
        bare = [replace(self.through(t, name), shift=None) for t in terms]
        scale, offset = self._norm(self._module(name), self.shapes[name])
        shifts = [t.shift * scale for t in terms if t.shift is not None]
        return self.fuse(name, *bare, shift=sum(shifts, offset))

    def each(self, parent: str, name: str, function: Callable[[Tensor], Tensor]) -> str:
        self.shapes[name] = self.shapes[parent]
        self.net.each(name, parent, function)
        return name

    def cat(self, name: str, *parents: str) -> str:
        self.shapes[name] = (sum(self.shapes[p][0] for p in parents),)
        self.net.move(name, parents, torch.arange(self.shapes[name][0]))
        return name

    def flatten(self, parent: str, name: str) -> str:
        self.shapes[name] = (math.prod(self.shapes[parent]),)
        self.net.move(name, [parent], torch.arange(self.shapes[name][0]))
        return name

    def max_pool(self, parent: str, name: str) -> str:
        """All to the index torch returns, which counts positions inside a channel."""
        shape, pool = self.shapes[parent], self._module(name)
        pooling = {2: F.max_pool1d, 3: F.max_pool2d}[len(shape)]
        value = self.net.values[parent].reshape(1, *shape)
        out, index = pooling(value, pool.kernel_size, pool.stride, pool.padding, return_indices=True)
        self.shapes[name] = tuple(out.shape[1:])
        start = torch.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)) * math.prod(shape[1:])
        self.net.move(name, [parent], (index[0] + start).flatten())
        return name

    def product(self, name: str, factors: Mapping[str, float]) -> str:
        self.shapes[name] = self.shapes[next(iter(factors))]
        self.net.product(name, factors)
        return name

    def _module(self, name: str) -> nn.Module | None:
        return dict(self.model.named_modules()).get(name.split("#")[0])

    def _channel(self, name: str) -> Tensor:
        shape = self.shapes[name]
        if self.channels_last:
            return torch.arange(math.prod(shape)) % shape[-1]
        return torch.arange(math.prod(shape)) // math.prod(shape[1:])

    @staticmethod
    def _norm(norm: nn.Module, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """An eval batch norm as factor and offset of every neuron."""
        scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
        offset = norm.bias.double() - norm.running_mean.double() * scale
        each = math.prod(shape[1:])
        return scale.detach().repeat_interleave(each), offset.detach().repeat_interleave(each)

"""Tiny random networks, each as a torch module and as the oracle's own description of it, under the same names.

Hypothesis draws an architecture, its choices and a seed. `Case.model` and `Case.inputs` go to the library;
`Case.oracle` builds the brute-force network of one sample. The oracle computes its own forward pass from its
matrices, so a wrong translation shows as a wrong output before any relevance is compared.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from modules import (
    ACTIVATIONS,
    ConvResidual,
    Dense,
    Doubled,
    Exits,
    Folded,
    Gate,
    Graph,
    InPlace,
    Late,
    Merge,
    Nested,
    NormedDense,
    NormedSum,
    Residual,
    Reused,
    Self,
    Signs,
    Stream,
    Token,
    filled,
)
from oracles.brute import Network
from oracles.twin import Matrices, Rules, Twin


@dataclass(frozen=True)
class Case:
    """A network in both forms. `trace` translates one sample's ops and returns the output's name."""

    kind: str
    model: nn.Module
    inputs: tuple[Tensor, ...]
    trace: Callable[[Twin, tuple[Tensor, ...]], str]
    matrices: Matrices = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{tuple(p.shape)}" for p in self.model.parameters())
        return f"<{self.kind}: {shapes}; inputs {[tuple(x.shape) for x in self.inputs]}>"

    def __len__(self) -> int:
        return len(self.inputs[0])

    @property
    def argument(self) -> Tensor | tuple[Tensor, ...]:
        """What the library is called with."""
        return self.inputs[0] if len(self.inputs) == 1 else self.inputs

    @property
    def outputs(self) -> Tensor:
        with torch.no_grad():
            return self.model(*(x.clone() for x in self.inputs))

    def twin(self, rules: Rules, sample: int = 0, **options: str) -> Twin:
        """The oracle's network of one sample, with the shapes of all its tensors, not yet asked for a target."""
        twin = Twin(self.model, Network(**options), rules, matrices=self.matrices)
        with torch.no_grad():
            twin.net.output = self.trace(twin, tuple(x[sample] for x in self.inputs))
        return twin

    def oracle(self, rules: Rules, target: int | str, sample: int = 0, **options: str) -> Network:
        twin = self.twin(rules, sample, **options)
        return twin.net.explain(twin.net.output, target)


# --- drawing ---

widths = st.sampled_from([3, 5, 4, 2, 1])  # shrinks towards 3: small, and not trivial
few = st.sampled_from([3, 2, 1])


def _inputs(seed: int, batch: int, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(seed + 1)
    return tuple(torch.randn(batch, *shape, generator=random, dtype=torch.float64) for shape in shapes)


@st.composite
def cases(draw: st.DrawFn, kind: str, batch: int = 1, biases: bool | None = None, positive: bool = False) -> Case:
    """A network of one kind. `positive`: non-negative inputs."""
    seed = draw(st.integers(0, 2**20))
    biases = draw(st.booleans()) if biases is None else biases
    model, shapes, trace = KINDS[kind](draw, biases)
    inputs = _inputs(seed, batch, *shapes)
    if positive:
        inputs = tuple(x.abs() for x in inputs)
    return Case(kind, filled(model, seed, draw(st.sampled_from([False, False, True]))), inputs, trace)


def _chain(draw: st.DrawFn, bias: bool, norm: bool = False) -> tuple:
    sizes = draw(st.lists(widths, min_size=3, max_size=5))
    act = draw(st.sampled_from(sorted(ACTIVATIONS)))
    parts: dict[str, nn.Module] = {}
    for k, (a, b) in enumerate(itertools.pairwise(sizes)):
        parts[f"lin{k}"] = nn.Linear(a, b, bias=bias)
        if k < len(sizes) - 2:
            if norm:
                parts[f"bn{k}"] = nn.BatchNorm1d(b)
            parts[f"act{k}"] = ACTIVATIONS[act][0]()

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        h = t.source("input", x[0])
        for k in range(len(sizes) - 1):
            last = k == len(sizes) - 2
            h = t.linear(h, f"lin{k}", *([f"bn{k}"] if norm and not last else []))
            h = h if last else t.each(h, f"act{k}", ACTIVATIONS[act][1])
        return h

    return nn.Sequential(OrderedDict(parts)), [(sizes[0],)], trace


def _normed(draw: st.DrawFn, bias: bool) -> tuple:
    return _chain(draw, bias, norm=True)


def _residual(draw: st.DrawFn, bias: bool, shortcut: bool = False) -> tuple:
    width, hidden, out = draw(widths), draw(widths), draw(widths)
    norm, scale = draw(st.booleans()), draw(st.sampled_from([1.0, 1.0, -0.5]))
    act = draw(st.sampled_from(sorted(ACTIVATIONS)))

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        x0 = t.source("input", x[0])
        h = t.each(t.linear(x0, "lin1"), "act1", ACTIVATIONS[act][1])
        inside = (["bn2"] if norm else []) + ([("/mul", scale)] if scale != 1 else [])
        skip = t.branch(x0, "short") if shortcut else t.identity(x0)
        h = t.fuse("/add", t.branch(h, "lin2", *inside), skip)
        return t.linear(t.each(h, "/relu", F.relu), "head")

    return Residual(width, hidden, out, bias, norm, scale, shortcut, act), [(width,)], trace


def _shortcut(draw: st.DrawFn, bias: bool) -> tuple:
    return _residual(draw, bias, shortcut=True)


def _stream(draw: st.DrawFn, bias: bool, norm: bool = False) -> tuple:
    width, hidden, out = draw(few), draw(few), draw(widths)

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        x0 = t.source("input", x[0])
        # The stem has two consumers: it is fused into each of them, and is a step of its own only without a norm.
        door = t.linear(x0, "stem", "norm1") if norm else t.linear(x0, "stem")
        h = t.each(t.linear(door, "up1"), "act1", F.relu)
        h = t.fuse("/add#0", t.branch(x0, "stem"), t.branch(h, "down1"))
        door = t.norm("norm2", t.identity(h)) if norm else h
        u = t.each(t.linear(door, "up2"), "act2", F.relu)
        h = t.fuse("/add#1", t.identity(h), t.branch(u, "down2"))
        return t.linear(h, "head")

    return Stream(width, hidden, out, bias, norm), [(width,)], trace


def _normed_stream(draw: st.DrawFn, bias: bool) -> tuple:
    return _stream(draw, bias, norm=True)


def _nested(draw: st.DrawFn, bias: bool) -> tuple:
    width, out = draw(widths), draw(widths)

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        x0 = t.source("input", x[0])
        h = t.fuse("/add#1", t.branch(x0, "a", "/add#0"), t.identity(x0, "/add#0"), t.branch(x0, "b"))
        return t.linear(t.each(h, "/relu", F.relu), "head")

    return Nested(width, out, bias), [(width,)], trace


def _signs(draw: st.DrawFn, bias: bool) -> tuple:
    width, out = draw(widths), draw(widths)

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        x0 = t.source("input", x[0])
        half = t.each(x0, "/mul", lambda v: 0.5 * v)  # a term of its own value; only linear steps are looked for below
        terms = t.branch(x0, "lin", "/sub"), t.identity(half, ("/sub", -1.0))
        h = t.fuse("/add", *terms, shift=torch.full((width,), 0.3, dtype=torch.float64))
        return t.linear(t.each(h, "/relu", F.relu), "head")

    return Signs(width, out, bias), [(width,)], trace


def _normed_sum(draw: st.DrawFn, bias: bool) -> tuple:
    width, out = draw(widths), draw(widths)

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        x0 = t.source("input", x[0])
        h = t.norm("norm", t.branch(x0, "lin", "/add"), t.identity(x0, "/add"))
        return t.linear(t.each(h, "/relu", F.relu), "head")

    return NormedSum(width, out, bias), [(width,)], trace


def _doubled(draw: st.DrawFn, bias: bool) -> tuple:
    width, out = draw(widths), draw(widths)

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        x0 = t.source("input", x[0])
        h = t.each(x0, "/tanh", torch.tanh)
        h = t.fuse("/add#0", t.identity(h), t.identity(h))
        h = t.fuse("/add#1", t.branch(h, "lin#0"), t.branch(x0, "lin#1"))
        return t.linear(t.each(h, "/relu", F.relu), "head")

    return Doubled(width, out, bias), [(width,)], trace


def _self(draw: st.DrawFn, bias: bool) -> tuple:
    width, hidden, out = draw(widths), draw(widths), draw(widths)

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        x0 = t.source("input", x[0])
        u = t.each(t.linear(x0, "lin"), "/tanh", torch.tanh)
        return t.linear(t.fuse("/add", t.identity(u), t.branch(x0, "lin")), "head")

    return Self(width, hidden, out, bias), [(width,)], trace


def _in_place(draw: st.DrawFn, bias: bool) -> tuple:
    width, out = draw(widths), draw(widths)

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        x0 = t.source("input", x[0])
        h = t.fuse("/add", t.branch(x0, "lin"), t.identity(x0))
        return t.linear(t.each(h, "/relu", F.relu), "head")

    return InPlace(width, out, bias), [(width,)], trace


def _folded(draw: st.DrawFn, bias: bool) -> tuple:
    out = draw(widths)

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        x0 = t.source("input", x[0])
        t.shapes |= {"/reshape#0": (2, 2), "/reshape#1": (2, 2)}
        h = t.fuse("/add", t.branch(x0, "lin", "/reshape#0"), t.identity(x0, "/reshape#1"))
        return t.linear(t.flatten(t.each(h, "/relu", F.relu), "/flatten"), "head")

    return Folded(out, bias), [(4,)], trace


def _graph(draw: st.DrawFn, bias: bool) -> tuple:
    """Any edges among three nodes, loops and repeated ones too; every node has at least one."""
    nodes, out, how = 3, draw(widths), draw(st.sampled_from(["sum", "mean", "amax"]))
    first = draw(st.lists(st.integers(0, nodes - 1), min_size=nodes, max_size=nodes))
    more = draw(st.lists(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), max_size=2))
    pairs = draw(st.permutations([*zip(first, range(nodes), strict=True), *more]))
    strengths = st.sampled_from([1.0, 0.5, -0.75])
    weights = draw(st.lists(strengths, min_size=len(pairs), max_size=len(pairs))) if how == "sum" else None
    mean = [1 / sum(b == target for _, b in pairs) for _, target in pairs]

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        t.channels_last = True
        x0 = t.source("input", x[0])
        if how == "sum":
            path, again = ("/getitem#0", "/mul", "/index_add#0"), "/index_add#1"
            h = t.fuse(path[-1], *t.along(t.branch(x0, "lin1"), pairs, weights, *path))
        elif how == "mean":
            path, again = ("/getitem#0", "/scatter_reduce"), "/index_add"
            h = t.fuse(path[-1], *t.along(t.branch(x0, "lin1"), pairs, mean, *path))
        else:
            again = "/index_add"
            h = t.max_along(t.linear(x0, "lin1"), pairs, "/getitem#0", "/scatter_reduce")
        h = t.each(h, "/relu#0", F.relu)
        neighbours = t.along(t.identity(h), pairs, [1.0] * len(pairs), "/getitem#1", again)
        h = t.fuse("/add", *neighbours, t.identity(h))
        h = t.each(t.linear(h, "lin2"), "/relu#1", F.relu)
        return t.linear(t.flatten(h, "/flatten"), "head")

    scale = torch.tensor(weights or [1.0] * len(pairs), dtype=torch.float64)
    return Graph(torch.tensor(pairs).T, scale, how, 2, out, bias), [(nodes, 2)], trace


def _normed_dense(draw: st.DrawFn, bias: bool) -> tuple:
    width, hidden, out = draw(few), draw(few), draw(widths)

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        x0 = t.source("input", x[0])
        h = t.norm("norm2", *t.joined("/cat#0", t.identity(x0), t.branch(x0, "lin1")))
        h = t.each(h, "/relu#0", F.relu)
        h = t.norm("norm3", *t.joined("/cat#1", t.identity(x0), t.branch(x0, "lin1"), t.branch(h, "lin2")))
        return t.linear(t.each(h, "/relu#1", F.relu), "head")

    return NormedDense(width, hidden, out, bias), [(width,)], trace


def _merge(draw: st.DrawFn, bias: bool, how: str, second: str) -> tuple:
    width, hidden, out = draw(widths), draw(widths), draw(widths)

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        x0 = t.source("input", x[0])
        u = t.each(t.linear(x0, "a"), "/relu", F.relu)
        if second == "linear" and how == "add":
            h = t.fuse("/add", t.identity(u), t.branch(x0, "b"))
        else:
            v = t.linear(x0, "b")
            v = t.each(v, "/tanh", torch.tanh) if second == "tanh" else v
            h = t.fuse("/add", t.identity(u), t.identity(v)) if how == "add" else t.cat("/cat", u, v)
        return t.linear(h, "head")

    return Merge(width, hidden, out, bias, how, second), [(width,)], trace


def _branches(draw: st.DrawFn, bias: bool) -> tuple:
    return _merge(draw, bias, "cat", draw(st.sampled_from(["tanh", "linear"])))


def _bare_add(draw: st.DrawFn, bias: bool) -> tuple:
    return _merge(draw, bias, "add", "tanh")


def _half_add(draw: st.DrawFn, bias: bool) -> tuple:
    return _merge(draw, bias, "add", "linear")


def _dense(draw: st.DrawFn, bias: bool) -> tuple:
    width, hidden, out = draw(few), draw(few), draw(widths)

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        h = t.source("input", x[0])
        for k in (0, 1):
            h = t.cat(f"/cat#{k}", h, t.each(t.linear(h, f"lin{k + 1}"), f"/relu#{k}", F.relu))
        return t.linear(h, "head")

    return Dense(width, hidden, out, bias), [(width,)], trace


def _late(draw: st.DrawFn, bias: bool) -> tuple:
    first, second, hidden, out = draw(widths), draw(widths), draw(widths), draw(widths)

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        x0, y0 = t.source("input[0]", x[0]), t.source("input[1]", x[1])
        h = t.each(t.linear(x0, "read"), "/tanh#0", torch.tanh)
        h = t.fuse("/add", t.branch(h, "keep"), t.branch(y0, "take"))
        return t.linear(t.each(h, "/tanh#1", torch.tanh), "head")

    return Late(first, second, hidden, out, bias), [(first,), (second,)], trace


def _exits(draw: st.DrawFn, bias: bool) -> tuple:
    width, hidden, early, late = draw(widths), draw(widths), draw(few), draw(few)

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        h = t.each(t.linear(t.source("input", x[0]), "lin1"), "/relu#0", F.relu)
        first = t.linear(h, "early")
        second = t.linear(t.each(t.linear(h, "lin2"), "/relu#1", F.relu), "late")
        return t.cat("/cat", first, second)

    return Exits(width, hidden, early, late, bias), [(width,)], trace


def _token(draw: st.DrawFn, bias: bool) -> tuple:
    width, own, hidden, out = draw(widths), draw(st.integers(1, 2)), draw(widths), draw(widths)

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        x0, token = t.source("input", x[0]), t.source("token", t.model.token[0])  # expanding it makes no new neurons
        h = t.linear(t.cat("/cat", token, x0), "lin")
        return t.linear(t.each(h, "/relu", F.relu), "head")

    return Token(width, own, hidden, out, bias), [(width,)], trace


def _reused(draw: st.DrawFn, bias: bool) -> tuple:
    width, out, calls = draw(widths), draw(widths), draw(st.integers(2, 3))

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        h = t.source("input", x[0])
        for k in range(calls):
            h = t.each(t.linear(h, f"cell#{k}"), f"act#{k}", lambda v: F.leaky_relu(v, 0.3))
        return t.linear(h, "head")

    return Reused(width, out, bias, calls), [(width,)], trace


def _gate(draw: st.DrawFn, bias: bool) -> tuple:
    width, hidden, out, first = draw(widths), draw(widths), draw(widths), draw(st.booleans())

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        x0 = t.source("input", x[0])
        gate = t.each(t.linear(x0, "gate"), "/sigmoid", torch.sigmoid)  # never reached: no offset needed here
        signal = t.each(t.linear(x0, "signal"), "/tanh", torch.tanh)
        return t.linear(t.product("/mul", {gate: 0.0, signal: 1.0}), "head")

    return Gate(width, hidden, out, bias, first), [(width,)], trace


def _conv1d(draw: st.DrawFn, bias: bool) -> tuple:
    groups, out = draw(st.integers(1, 2)), draw(widths)
    channels, width = 2, 2
    stride, padding, dilation = draw(st.integers(1, 2)), draw(st.integers(0, 1)), draw(st.integers(1, 2))
    conv = nn.Conv1d(channels, width, 2, stride, padding, dilation, groups, bias=bias)
    conv2 = nn.Conv1d(width, width, 2, padding=1, bias=bias)
    pool = nn.MaxPool1d(2, stride=1)
    body = nn.Sequential(OrderedDict(conv1=conv, act1=nn.ReLU(), pool=pool, conv2=conv2, act2=nn.ReLU()))
    with torch.no_grad():
        features = body(torch.zeros(1, channels, 5)).numel()
    parts = OrderedDict(body.named_children()) | {"flat": nn.Flatten(), "head": nn.Linear(features, out, bias=bias)}

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        h = t.each(t.linear(t.source("input", x[0]), "conv1"), "act1", F.relu)
        h = t.each(t.linear(t.max_pool(h, "pool"), "conv2"), "act2", F.relu)
        return t.linear(t.flatten(h, "flat"), "head")

    return nn.Sequential(parts), [(channels, 5)], trace


def _conv2d(draw: st.DrawFn, bias: bool) -> tuple:
    channels, out, padding = draw(st.integers(1, 2)), draw(widths), draw(st.integers(0, 1))
    norm = draw(st.booleans())
    parts: OrderedDict[str, nn.Module] = OrderedDict(conv=nn.Conv2d(channels, 2, 3, padding=padding, bias=bias))
    if norm:
        parts["bn"] = nn.BatchNorm2d(2)
    parts |= {"act": nn.ReLU(), "pool": nn.MaxPool2d(2), "mean": nn.AvgPool2d((1, 2) if padding else 1)}
    with torch.no_grad():
        features = nn.Sequential(parts).eval()(torch.zeros(1, channels, 4, 4)).numel()
    parts |= {"flat": nn.Flatten(), "head": nn.Linear(features, out, bias=bias)}

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        h = t.linear(t.source("input", x[0]), "conv", *(["bn"] if norm else []))
        h = t.max_pool(t.each(h, "act", F.relu), "pool")
        return t.linear(t.flatten(t.linear(h, "mean"), "flat"), "head")

    return nn.Sequential(parts), [(channels, 4, 4)], trace


def _conv_residual(draw: st.DrawFn, bias: bool) -> tuple:
    channels, width, out = draw(st.integers(1, 2)), 2, draw(widths)

    def trace(t: Twin, x: tuple[Tensor, ...]) -> str:
        h = t.each(t.linear(t.source("input", x[0]), "conv1", "bn1"), "/relu#0", F.relu)
        h = t.fuse("/add", t.branch(h, "conv2", "bn2"), t.identity(h))
        h = t.linear(t.each(h, "/relu#1", F.relu), "pool")
        return t.linear(t.flatten(h, "/flatten"), "head")

    return ConvResidual(channels, width, out, bias), [(channels, 3)], trace


KINDS: dict[str, Callable[[st.DrawFn, bool], tuple]] = {
    "chain": _chain,
    "normed": _normed,
    "residual": _residual,
    "shortcut": _shortcut,
    "stream": _stream,
    "normed stream": _normed_stream,
    "nested": _nested,
    "signs": _signs,
    "normed sum": _normed_sum,
    "doubled": _doubled,
    "self": _self,
    "in place": _in_place,
    "folded": _folded,
    "graph": _graph,
    "branches": _branches,
    "bare add": _bare_add,
    "half add": _half_add,
    "dense": _dense,
    "normed dense": _normed_dense,
    "late input": _late,
    "exits": _exits,
    "token": _token,
    "reused": _reused,
    "gate": _gate,
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "conv residual": _conv_residual,
}

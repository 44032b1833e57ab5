"""Relevance in recurrent networks: fused modules, cells in loops and plain ops agree, and so does brute force."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import nrm
from oracles import brute
from oracles.brute import Block, Network
from recurrent import KINDS, Fused, Loop, Unrolled, layer, states

pytestmark = pytest.mark.filterwarnings("ignore::nrm.NrmWarning")

HALF, OWN = nrm.Product(gate=1, signal=1), nrm.Product(gate=0.3, signal=0.7)
RULES = {
    "lrp-0": ({"*": "lrp-0"}, "input"),
    "half": ({"*/mul": HALF, "*": "lrp-0"}, "input"),
    "own": ({"*/mul": OWN, "*": "lrp-0"}, "input"),
    "gamma": (nrm.Gamma(0.25), "input"),
    "epsilon-plus": ("epsilon-plus", "ignore"),
    "z+": (nrm.ZPlus(), "ignore"),
    "alpha-beta": (nrm.AlphaBeta(2, 1), "ignore"),
}
SHAPES = {
    "one": {},
    "two layers": {"num_layers": 2},
    "both ways": {"bidirectional": True},
    "two layers, both ways": {"num_layers": 2, "bidirectional": True},
}


def ask(model: nn.Module, inputs: tuple[Tensor, ...], rules: str = "lrp-0", **options: object) -> nrm.Measure:
    chosen, bias = RULES[rules]
    options = {"bias": bias, "zero": "uniform", "target": 1} | options
    return nrm.measure(model, inputs if len(inputs) > 1 else inputs[0], rules=chosen, dtype=torch.float64, **options)


GATED = [(kind, rules) for kind in KINDS for rules in RULES if kind in ("lstm", "gru") or rules not in ("half", "own")]
FUSED = [  # all rules in the widest shape; how the others are put together shows under two of them
    (shape, kind, rules)
    for shape in SHAPES
    for kind, rules in GATED
    if shape == "two layers, both ways" or rules in ("lrp-0", "alpha-beta")
]


def close(a: Tensor, b: Tensor) -> None:
    """Equal up to rounding, which cancellation can multiply."""
    torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9 * max(1.0, float(b.abs().sum())))


def read(R: nrm.Measure) -> nrm.Layer:
    return R["input"] if "input" in R.inner.tape.names and len(R.inner.tape.inputs) == 1 else R["input[0]"]


def hidden(rnn: nn.RNNBase) -> list[str]:
    """The names of the hidden states, in the order in which the plain network makes them."""
    names = []
    for k in range(rnn.num_layers):
        for d in ("forward", "backward")[: 2 if rnn.bidirectional else 1]:
            words = ([f"layer {k}"] if rnn.num_layers > 1 else []) + ([d] if rnn.bidirectional else [])
            steps = range(3) if d == "forward" else range(2, -1, -1)
            names += [f"rnn{'[' + ', '.join(words) + ']' if words else ''}/h#{t}" for t in steps]
    return names


@pytest.mark.parametrize(("shape", "kind", "rules"), FUSED)
def test_fused_modules_are_what_they_compute(shape: str, kind: str, rules: str) -> None:
    rnn = layer(kind, batch_first=True, **SHAPES[shape])
    fused = Fused(rnn)
    inputs = (torch.randn(2, 3, 3, dtype=torch.float64), *states(kind, rnn, 2))
    R, S = ask(fused, inputs, rules), ask(Unrolled(fused), inputs, rules)
    if max(max(v) for v in S.check(strict=False).variation.values()) > 1e4:
        pytest.skip("so ill-conditioned that rounding decides")
    torch.testing.assert_close(R.value, S.value)
    for part in (f"input[{k}]" for k in range(len(inputs))):
        close(R(R[part]), S(S[part]))
    names = hidden(rnn)
    for k, name in enumerate(names):
        close(R(R[name]), S(S[f"h#{k}"]))
        close(R(R["input[0]"], R[name].channels), S(S["input[0]"], S[f"h#{k}"].channels))
    for a, b in ((0, 1), (0, 2), (0, len(names) - 1)):
        close(R(R[names[a]], R[names[b]]), S(S[f"h#{a}"], S[f"h#{b}"]))
    masses = [sum((Q(b.all) for b in Q.biases), torch.zeros(2)) for Q in (R, S)]
    close(*masses)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_mass_is_one_on_cuts(kind: str, shape: str) -> None:
    rnn = layer(kind, batch_first=True, **SHAPES[shape])
    R = ask(Fused(rnn), (torch.randn(2, 3, 3, dtype=torch.float64),))
    one = torch.ones(2, dtype=torch.float64)
    close(sum(R(part.all) for part in R.inputs), one)
    for name in hidden(rnn)[:: rnn.num_layers + 1]:
        close(sum(R(part.all) for part in R.cut(name)), one)
    assert R.check(strict=False).cut_error < 1e-9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [False, True])
def test_a_reused_cell_is_a_fused_module(kind: str, given: bool) -> None:
    """Weights are shared by the calls, relevance is not: the case where hooks see the last call only."""
    fused = Fused(layer(kind, batch_first=True))
    inputs = (torch.randn(2, 4, 3, dtype=torch.float64), *(states(kind, fused.rnn, 2) if given else ()))
    R, S = ask(fused, inputs), ask(Loop(kind, fused), inputs)
    close(R(read(R)), S(read(S)))
    for t in range(4):
        close(R(R["rnn"].step(t).layer, read(R)), S(S[f"cell#{t}"], read(S)))
        close(R(R["rnn"].step(t)), S(S["cell"].step(t)))
    close(R(R["rnn"].steps, R["rnn"].steps), S(S["cell"].steps, S["cell"].steps))
    assert S["cell"].facts == "4 steps"
    names = {name.removeprefix("cell") for name in S.inner.tape.names if name.startswith("cell/")}
    assert names == {name.removeprefix("rnn") for name in R.inner.tape.names if name.startswith("rnn/")} - {
        "/step", f"/{fused.rnn.mode.lower()}"
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_states_without_neurons(kind: str) -> None:
    """An initial state that is 0 has no relevance; leaving it out is the same as giving zeros."""
    fused = Fused(layer(kind, batch_first=True, bias=False))
    x = torch.randn(2, 3, 3, dtype=torch.float64)
    zeros = tuple(torch.zeros_like(s) for s in states(kind, fused.rnn, 2))
    R, S = ask(fused, (x,)), ask(fused, (x, *zeros))
    close(R(R.input), S(S["input[0]"]))
    T = ask(Unrolled(fused), (x,))
    close(R(R.input), T(T.input))
    assert len(R.inputs) == 1


def test_projections() -> None:
    fused = Fused(layer("lstm", proj_size=2, num_layers=2, bidirectional=True, batch_first=True))
    inputs = (torch.randn(2, 3, 3, dtype=torch.float64), *states("lstm", fused.rnn, 2))
    R, S = ask(fused, inputs), ask(Unrolled(fused), inputs)
    for part in ("input[0]", "input[1]", "input[2]"):
        close(R(R[part]), S(S[part]))


def test_time_first() -> None:
    fused = Fused(layer("lstm", num_layers=2))
    x = torch.randn(3, 2, 3, dtype=torch.float64)
    R = ask(fused, (x,), batch_dim=1)
    fused.rnn.batch_first = True
    S = ask(fused, (x.transpose(0, 1),))
    close(R(R.input), S(S.input))
    close(R(R.input.channels), R(R.input).sum(1))
    close(R(R["rnn"]), S(S["rnn"]))
    close(R(R["rnn"].steps), S(S["rnn"].steps))


def test_one_sequence_without_a_batch() -> None:
    rnn = layer("gru", batch_first=True)
    head = nn.Linear(4, 2).double()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = rnn, head

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][..., -1, :])

    x = torch.randn(5, 3, dtype=torch.float64)
    R, S = ask(Model(), (x,), batch_dim=None), ask(Model(), (x[None],))
    close(R(R.input), S(S.input))
    assert R(R["rnn"].step(2)).shape == (1,)


class PackedModel(nn.Module):
    """Sequences of several lengths; reads the padded output or the last states."""

    def __init__(self, rnn: nn.RNNBase, how: str) -> None:
        super().__init__()
        self.rnn, self.how = rnn, how
        self.head = nn.Linear(rnn.hidden_size * (2 if rnn.bidirectional else 1), 2).double()
        self.eval()

    def forward(self, x: Tensor, lengths: Tensor, *given: Tensor) -> Tensor:
        first = tuple(s.transpose(0, 1) for s in given)
        hx = None if not first else first if len(first) > 1 else first[0]
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, state = self.rnn(packed, hx)
        if self.how == "states":
            h = state[0] if isinstance(state, tuple) else state
            return self.head(torch.cat(list(h[-2:] if self.rnn.bidirectional else h[-1:]), 1))
        return self.head(pad_packed_sequence(out, batch_first=True)[0].sum(1))


@pytest.mark.parametrize(("kind", "rules"), [case for case in GATED if case[1] in ("lrp-0", "half", "z+")])
@pytest.mark.parametrize("shape", ["one", "two layers, both ways"])
@pytest.mark.parametrize("how", ["padded", "states"])
def test_packed_samples_are_alone(kind: str, shape: str, how: str, rules: str) -> None:
    """Every sample has the relevance that it has by itself, and padding has none."""
    if (how, rules) == ("padded", "z+"):
        pytest.skip("a dead sum over time is spread over all its terms, padding among them")
    model = PackedModel(layer(kind, batch_first=True, **SHAPES[shape]), how)
    x, lengths = torch.randn(4, 5, 3, dtype=torch.float64), torch.tensor([3, 5, 1, 3])
    first = states(kind, model.rnn, 4) if how == "states" else ()
    R = ask(model, (x, lengths, *first), rules)
    found = R(R["input[0]"])
    for i, n in enumerate(lengths.tolist()):
        alone = (x[i : i + 1, :n], lengths[i : i + 1], *(s[i : i + 1] for s in first))
        S = ask(model, alone, rules)
        assert not found[i, n:].any()
        close(found[i, :n], S(S["input[0]"])[0])
        for name in R.inner.tape.steps:
            for t in range(n):
                close(R(nrm.layer(name).step(t))[i], S(nrm.layer(name).step(t))[0])
            for t in range(n, 5):
                assert not R(nrm.layer(name).step(t))[i]
    close(sum(R(part.all) for part in R.inputs), torch.ones(4, dtype=torch.float64))


def test_a_layer_on_packed_data_keeps_samples_apart() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn, self.head = nn.Linear(3, 3), layer("tanh"), nn.Linear(4, 2)
            self.double()

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = pack_padded_sequence(x, lengths, batch_first=True)
            packed = packed._replace(data=torch.relu(self.embed(packed.data)))
            return self.head(self.rnn(packed)[1][-1])

    model, x, lengths = Model(), torch.randn(2, 4, 3, dtype=torch.float64), torch.tensor([4, 2])
    R = ask(model, (x, lengths))
    for i in range(2):
        S = ask(model, (x[i : i + 1, : lengths[i]], lengths[i : i + 1]))
        close(R(R["embed.bias"])[i], S(S["embed.bias"])[0])
    close(sum(R(part.all) for part in R.inputs), torch.ones(2, dtype=torch.float64))


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_steps_are_events_and_an_axis() -> None:
    fused = Fused(layer("lstm", batch_first=True))
    R = ask(fused, (torch.randn(2, 4, 3, dtype=torch.float64),))
    a = R["rnn"]
    table = R(a.steps, a.steps)
    assert table.shape == (2, 4, 4)
    for s in range(4):
        close(R(a.step(s)), R(a.steps)[:, s])
        close(R(a.step(s)), R(R[f"rnn/h#{s}"]).sum(1))
        for t in range(4):
            close(table[:, s, t], R(a.step(s), a.step(t)))
    close(R(R.input, a.steps)[..., 2], R(R.input, a.step(2)))
    close(R(a.steps, R.input)[:, 2], R(R.input, a.step(2)))
    close(R(a.steps[1:3], given=a.step(3)), table[:, 1:3, 3] / table[:, 3, 3, None])
    close(R(a.step(0), given=a.steps[[3, 2]]), table[:, 0, [3, 2]] / torch.stack([table[:, 3, 3], table[:, 2, 2]], 1))
    close(R(a.step([1, -1])), table[:, 1, 1] + table[:, 3, 3] - table[:, 1, 3])
    close(R(a.step([[1], [3, 0]])),
          torch.stack([table[0, 1, 1], table[1, 3, 3] + table[1, 0, 0] - table[1, 0, 3]]))  # fmt: skip
    close(R.sample(1)(a.step([[1], [3]])), table[1:, 3, 3])


def test_steps_by_walks() -> None:
    """Any of three steps, by inclusion and exclusion, is what the list of walks says."""
    model = Fused(layer("tanh", 1, 2, batch_first=True))
    x = torch.randn(1, 3, 1, dtype=torch.float64)
    R = ask(model, (x,))
    _, walks = written_out(model, x[0], "input")
    any_of = [walk for walk in walks if brute.at("rnn/h#0")(walk[0]) or brute.at("rnn/h#2")(walk[0])]
    assert float(R(R["rnn"].step([0, 2]))) == pytest.approx(brute.measure(any_of))
    assert float(R(R["rnn"].step(0), R["rnn"].step(2))) == pytest.approx(
        brute.measure(walks, brute.at("rnn/h#0"), brute.at("rnn/h#2"))
    )


# ---- brute force -----------------------------------------------------------------------------------------------------


def written_out(
    model: Fused, x: Tensor, bias: str, gate: float = 0.0
) -> tuple[Network, list[tuple[brute.Walk, float]]]:
    """The network with one unfolded layer and a head that reads the mean of all steps, as blocks; and its walks."""
    rnn, net, steps, size = model.rnn, Network(bias=bias), len(x), model.rnn.hidden_size
    w, u, b, d = (getattr(rnn, f"{n}_l0").detach() for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    net.source("input", x)

    def linear(name: str, parts: dict[str, Tensor], shift: Tensor | None) -> None:
        net.affine(name, [Block(p, m.T.contiguous()) for p, m in parts.items()], shift)

    def squash(name: str, parent: str, rows: slice, function: str) -> None:
        value = getattr(torch, function)(net.values[parent][rows])
        offset = 0.5 if function == "sigmoid" else 0.0
        select = torch.zeros(len(net.values[parent]), size, dtype=torch.float64)
        select[torch.arange(rows.start, rows.stop), torch.arange(size)] = 1 - offset / value
        blocks = [Block(parent, select, None)]
        if offset:
            stem, _, t = name.partition("#")
            net.source(f"{stem}.offset#{t}", torch.ones(size))
            blocks.append(Block(f"{stem}.offset#{t}", torch.diag(offset / value), None))
        net.step(name, blocks, value)

    def identity(name: str, parts: list[str]) -> None:
        linear(name, {p: torch.eye(size, dtype=torch.float64) for p in parts}, None)

    for t in range(steps):
        net.move(f"x#{t}", ["input"], torch.arange(t * x.shape[1], (t + 1) * x.shape[1]))
        if rnn.mode == "RNN_TANH":
            parts = {f"x#{t}": w} | ({f"rnn/h#{t - 1}": u} if t else {})
            linear(f"rnn/pre#{t}", parts, b + d)
            squash(f"rnn/h#{t}", f"rnn/pre#{t}", slice(0, size), "tanh")
        elif rnn.mode == "LSTM":
            parts = {f"x#{t}": w} | ({f"rnn/h#{t - 1}": u} if t else {})
            linear(f"rnn/gates#{t}", parts, b + d)
            for k, name in enumerate("ifgo"):
                rows = slice(k * size, (k + 1) * size)
                squash(f"rnn/{name}#{t}", f"rnn/gates#{t}", rows, "tanh" if name == "g" else "sigmoid")
            net.product(f"new#{t}", {f"rnn/i#{t}": gate, f"rnn/g#{t}": 1 - gate})
            if t:
                net.product(f"kept#{t}", {f"rnn/f#{t}": gate, f"rnn/c#{t - 1}": 1 - gate})
            identity(f"rnn/c#{t}", [f"new#{t}"] + ([f"kept#{t}"] if t else []))
            squash(f"bounded#{t}", f"rnn/c#{t}", slice(0, size), "tanh")
            net.product(f"rnn/h#{t}", {f"rnn/o#{t}": gate, f"bounded#{t}": 1 - gate})
        else:
            gru_step(net, linear, squash, identity, (w, u, b, d), t, size, gate)
    weight, shift = model.head.weight.detach(), model.head.bias.detach()
    mean = torch.cat([torch.eye(size, dtype=torch.float64) / steps] * steps)
    rows = mean.split(size)
    net.affine("mean", [Block(f"rnn/h#{t}", rows[t]) for t in range(steps)])
    linear("head", {"mean": weight}, shift)
    return net, brute.walks(net.explain("head", 1), limit=200_000)


def gru_step(net, linear, squash, identity, weights, t, size, gate) -> None:  # type: ignore[no-untyped-def]
    w, u, b, d = weights
    both, own = slice(0, 2 * size), slice(2 * size, 3 * size)
    old = f"rnn/h#{t - 1}"
    linear(f"rnn/gates#{t}", {f"x#{t}": w[both]} | ({old: u[both]} if t else {}), (b + d)[both])
    for k, name in enumerate("rz"):
        squash(f"rnn/{name}#{t}", f"rnn/gates#{t}", slice(k * size, (k + 1) * size), "sigmoid")
    eye, blocks, shift = torch.eye(size, dtype=torch.float64), [Block(f"x#{t}", w[own].T.contiguous())], b[own]
    if t:
        linear(f"rnn/memory#{t - 1}", {old: u[own]}, d[own])
        net.product(f"past#{t}", {f"rnn/r#{t}": gate, f"rnn/memory#{t - 1}": 1 - gate})
        blocks.append(Block(f"past#{t}", eye))
    else:
        shift = shift + net.values[f"rnn/r#{t}"] * d[own]
    net.affine(f"rnn/pre#{t}", blocks, shift)
    squash(f"rnn/n#{t}", f"rnn/pre#{t}", slice(0, size), "tanh")
    net.affine(f"rest#{t}", [Block(f"rnn/z#{t}", -eye)], torch.ones(size, dtype=torch.float64))
    net.product(f"new#{t}", {f"rest#{t}": gate, f"rnn/n#{t}": 1 - gate})
    if t:
        net.product(f"kept#{t}", {f"rnn/z#{t}": gate, old: 1 - gate})
    identity(f"rnn/h#{t}", [f"new#{t}"] + ([f"kept#{t}"] if t else []))


@pytest.mark.parametrize(("kind", "gates"), [c for c in GATED if c[0] != "relu" and c[1] in ("lrp-0", "half")])
def test_brute_force(kind: str, gates: str) -> None:
    """A tiny network, every walk: marginals, pairs and triples of its tensors."""
    rnn = layer(kind, 2, 1, batch_first=True) if gates == "half" else layer(kind, 1, 2, batch_first=True)
    model, x = Fused(rnn), torch.randn(1, 3, rnn.input_size, dtype=torch.float64)
    R = ask(model, (x,), gates, zero="sink")
    net, walks = written_out(model, x[0], "input", 0.5 if gates == "half" else 0.0)
    torch.testing.assert_close(net.values["head"], R.values("head")[0])
    sites = [name for name in net.values if name == "input" or (name.startswith("rnn/") and "offset" not in name)]
    sites = [name for name in sites if any(brute.at(name)(walk) for walk, _ in walks)]
    size = sum(abs(r) for _, r in walks)

    def truth(*names: str) -> Tensor:
        labels = [(name, torch.arange(len(net.values[name]))) for name in names]
        return brute.table(walks, labels)

    for name in sites:
        found = R(R[name])[0].flatten()
        torch.testing.assert_close(found, truth(name), rtol=1e-8, atol=1e-10 * size)
    events = [s for s in sites if s != "input" and ".bias" not in s]
    for k, (a, b) in enumerate(zip(events, events[3:], strict=False)):
        answer = R(R[a], R[b])[0].reshape(len(net.values[a]), -1)
        torch.testing.assert_close(answer, truth(a, b), rtol=1e-8, atol=1e-10 * size)
        c = events[(7 * k) % len(events)]
        if c not in (a, b):
            answer = R(R.input, R[a].all, R[b].all, R[c].all)[0].flatten()
            found = [w for w in walks if all(brute.at(s)(w[0]) for s in (a, b, c))]
            labels = [("input", torch.arange(x.numel()))]
            torch.testing.assert_close(answer, brute.table(found, labels), rtol=1e-8, atol=1e-10 * size)
            some = (nrm.visits(R[a][0], R[c].all) ^ nrm.visits(R[b].all)) | ~nrm.visits(R.input[0])
            first = brute.at("input", range(rnn.input_size))
            passes = [
                (w, r) for w, r in walks
                if (brute.at(a, [0])(w) or brute.at(c)(w)) != brute.at(b)(w) or not first(w)
            ]  # fmt: skip
            answer = R(R.input, some)[0].flatten()
            torch.testing.assert_close(answer, brute.table(passes, labels), rtol=1e-8, atol=1e-10 * size)
            torch.testing.assert_close(float(R(some)), brute.measure(passes), rtol=1e-8, atol=1e-10 * size)
            torch.testing.assert_close(
                float(R(R[b].all, some)), brute.measure(passes, brute.at(b)), rtol=1e-8, atol=1e-10 * size
            )


# ---- long sequences --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_a_hundred_steps(kind: str) -> None:
    cls, extra = KINDS[kind]
    fused = Fused(cls(4, 16, batch_first=True, **extra).double())
    x = torch.randn(1, 100, 4, dtype=torch.float64)
    R = ask(fused, (x,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert R.check().ok == (True,)
    assert R(R.input).shape == (1, 100, 4)
    assert len(R.layers) > 100
    close(sum(R(part.all) for part in R.inputs), torch.ones(1, dtype=torch.float64))
    S = ask(Loop(kind, fused), (x,))
    close(R(R.input), S(S.input))
    close(R(R["rnn"].step(80), R["rnn"].step(20)), S(S["cell#80"].all, S["cell#20"].all))

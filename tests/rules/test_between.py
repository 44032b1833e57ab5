"""Walks between chosen layers by gradients and perturbation, against entries that are formed one by one."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian

import nrm
from nrm.testing import check_measure
from oracles import brute
from oracles.blocks import ENTRIES, chain

pytestmark = pytest.mark.filterwarnings("ignore::nrm.NrmWarning")

RULES: dict[str, Callable[..., object]] = {
    "gradient": nrm.Gradient,
    "integrated": lambda *a, **k: nrm.IntegratedGradients(*a, **k, steps=6),
    "occlusion": nrm.Occlusion,
    "shapley": lambda *a, **k: nrm.Shapley(*a, **k, samples=10**6),
}
every_rule = pytest.mark.parametrize("kind", RULES)


class Skip(nn.Module):
    """A residual block that ends with a norm over everything."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, 5), nn.Linear(5, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(torch.nn.functional.gelu(self.up(x))))


class Gate(nn.Module):
    """A product of two functions of the input, and a maximum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.signal = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.gate(x)) * torch.maximum(self.signal(x), 0.1 * x)


class Attend(nn.Module):
    """Self-attention over two positions, its weights left to depend on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = x.reshape(-1, 2, 2)
        return (h + self.attention(h, h, h)[0]).flatten(1)


def parts(**modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(modules))


MODELS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = {
    "deep": (lambda: parts(a=nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), nn.GELU()),
                           b=nn.Sequential(nn.Linear(3, 4), nn.SiLU()), head=nn.Linear(4, 2)), (3,)),
    "residual": (lambda: parts(a=Skip(3), b=Skip(3), head=nn.Linear(3, 2)), (3,)),
    "gated": (lambda: parts(a=Gate(3), b=nn.Sequential(nn.Linear(3, 3), nn.LeakyReLU(0.1, inplace=True)),
                            head=nn.Linear(3, 2)), (3,)),
    "attention": (lambda: parts(a=Attend(), head=nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))), (4,)),
    "cnn": (lambda: parts(a=nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.BatchNorm1d(2), nn.LeakyReLU(0.3),
                                          nn.MaxPool1d(2)),
                          b=nn.Sequential(nn.Conv1d(2, 2, 1), nn.GELU()),
                          head=nn.Sequential(nn.Flatten(), nn.Linear(4, 2))), (1, 4)),
}  # fmt: skip
every_model = pytest.mark.parametrize("name", MODELS)


def made(name: str, batch: int = 2) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(3)
    build, shape = MODELS[name]
    model = build().double().eval()
    for p in model.parameters():
        p.data = torch.randn_like(p) * 0.7
    return model, torch.randn(batch, *shape, dtype=torch.float64)


# --- the entries, one by one ---


@every_model
@pytest.mark.parametrize("bias", ["ignore", "input"])
@pytest.mark.parametrize(("kind", "base"), [("gradient", 0.0), *((k, b) for k in list(RULES)[1:] for b in (0.0, 0.3))])
def test_every_walk(name: str, kind: str, bias: str, base: float) -> None:
    """Joint tables over all chosen layers equal the enumeration of walks, sample by sample."""
    model, x = made(name)
    options = {} if kind == "gradient" else {"baseline": base}
    R = nrm.measure(model, x, target=1, rules=RULES[kind](**options), bias=bias)
    names = ["input", *(n for n, _ in model.named_children())]
    for sample in range(len(x)):
        net = chain(list(model.named_children()), x[sample], ENTRIES[kind], base=base, bias=bias)
        found = brute.walks(net.explain("head", 1))
        sizes = [len(net.values[n]) for n in names[:-1]]
        truth = brute.table(found, [(n, torch.arange(size)) for n, size in zip(names[:-1], sizes, strict=True)])
        mine = R.sample(sample)(*(nrm.layer(n) for n in names[:-1])).reshape(sizes)
        scale = max(1.0, sum(abs(r) for _, r in found))
        torch.testing.assert_close(mine, truth, rtol=1e-8, atol=1e-10 * scale)
        for part in R.biases:
            at = torch.arange(len(net.values[part.name]))
            torch.testing.assert_close(R.sample(sample)(part)[0], brute.table(found, [(part.name, at)]),
                                       rtol=1e-8, atol=1e-10 * scale)  # fmt: skip
        assert bool(R.biases) == (bias == "input")


@every_rule
@every_model
def test_laws(name: str, kind: str) -> None:
    """Mass 1 on cuts, marginals of joints, multiplication and Bayes, and neurons of a layer are all that matters."""
    model, x = made(name, batch=3)
    R = nrm.measure(model, x, rules=RULES[kind](), bias="input")
    assert all(R.check(strict=False).ok)
    check_measure(R, tolerance=1e-7)
    one = torch.ones(3, dtype=torch.float64)
    for cut in (R.inputs, R.cut("a")):
        torch.testing.assert_close(sum(R(p.all) for p in cut), one, rtol=0, atol=1e-8)
    low, high, single = R.input, R["a"], R(R.input).ndim
    joint, above = R(low, high), R(high)
    torch.testing.assert_close(joint.flatten(single).sum(-1), R(low, high.all), rtol=1e-8, atol=1e-9)
    wide = above.reshape(3, *(1,) * (single - 1), *above.shape[1:])
    torch.testing.assert_close(R(low, given=high) * wide, joint, rtol=1e-8, atol=1e-9)
    far, near = R(low, high, R["head"]), R(high, R["head"])
    assert far.shape == (*joint.shape, 2)
    markov = joint[..., None] * near.reshape(*wide.shape, 2) / torch.where(wide == 0, 1.0, wide)[..., None]
    torch.testing.assert_close(far, markov, rtol=1e-7, atol=1e-9)


@every_rule
def test_batches_are_samples(kind: str) -> None:
    for name in ("residual", "cnn"):
        model, x = made(name, batch=3)
        R = nrm.measure(model, x, target=0, rules=RULES[kind]())
        for i in range(3):
            one = nrm.measure(model, x[i : i + 1], target=0, rules=RULES[kind]())
            torch.testing.assert_close(R(R.input, R["a"])[i : i + 1], one(one.input, one["a"]), rtol=1e-8, atol=1e-9)


@every_rule
@pytest.mark.parametrize("act", [nn.ReLU, nn.Tanh, nn.GELU, nn.LeakyReLU])
def test_one_linear_and_elementwise_step_is_lrp_0(kind: str, act: type[nn.Module]) -> None:
    """The theorem for gradients: the slope is the same for all entries of a column, and normalizing cancels it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), act(), nn.Linear(4, 3), act(), nn.Linear(3, 2)).double()
    x = torch.randn(2, 3, dtype=torch.float64)
    R = nrm.measure(model, x, rules=RULES[kind](["1", "3"]), bias="ignore")
    L = nrm.measure(model, x, rules="lrp-0", bias="ignore")
    difference = (R(R.input, R["1"], R["3"]) - L(L.input, L["1"], L["3"])).abs().max() / L(L.input).abs().sum()
    if kind in ("gradient", "integrated"):
        assert float(difference) < 1e-10
    elif act in (nn.Tanh, nn.GELU):
        assert float(difference) > 1e-4  # removing one input at a time sees more than one slope


@every_rule
def test_blocks_of_several_layers_are_not_lrp_0(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    x = torch.randn(2, 3, dtype=torch.float64)
    R = nrm.measure(model, x, rules=RULES[kind](["3"]), bias="ignore")
    L = nrm.measure(model, x, rules="lrp-0", bias="ignore")
    assert float((R(R.input, R["3"]) - L(L.input, L["3"])).abs().max()) > 1e-3


def test_with_biases_as_inputs_relu_blocks_are_lrp_0() -> None:
    """A network of ReLUs is linear around its input, so that gradients over any blocks are LRP-0 with its biases."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    x = torch.randn(2, 3, dtype=torch.float64)
    R = nrm.measure(model, x, rules=nrm.Gradient([]), bias="input")
    L = nrm.measure(model, x, rules="lrp-0", bias="input")
    torch.testing.assert_close(R(R.input), L(L.input), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("bias", ["ignore", "input"])
def test_a_convolutional_network(bias: str) -> None:
    """Two blocks of convolutions, pooling and a skip, by gradients that are written out."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GELU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1))
            self.conv, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

        def top(self, h: Tensor) -> Tensor:
            return self.head(torch.nn.functional.silu(self.conv(h) + h).mean((2, 3)))

        def forward(self, x: Tensor) -> Tensor:
            return self.top(self.stem(x))

    torch.manual_seed(0)
    model, x = Net().double(), torch.randn(2, 2, 6, 6, dtype=torch.float64)
    R = nrm.measure(model, x, target=1, rules=nrm.Gradient(["stem"]), bias=bias)
    h = model.stem(x).detach()
    above = h * torch.autograd.functional.vjp(lambda h: model.top(h)[:, 1].sum(), h)[1]
    whole = above.sum((1, 2, 3), keepdim=True) if bias == "ignore" else model(x)[:, 1].detach().view(-1, 1, 1, 1)
    message = above / whole
    torch.testing.assert_close(R(R["stem"]), message, rtol=1e-9, atol=1e-10)
    entries = jacobian(lambda x: model.stem(x).sum(0), x).movedim(3, 0) * x[:, None, None, None]
    columns = entries.sum((4, 5, 6)) if bias == "ignore" else h
    joint = entries * (message / columns)[..., None, None, None]
    torch.testing.assert_close(R(R["stem"].channels, R.input), joint.sum((2, 3)), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(R(R["stem"].positions, R.input.positions), joint.sum((1, 4)), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(R(R.input, R["stem"].channel(2), R["stem"][:, :2]), joint[:, 2, :2].sum((1, 2)),
                               rtol=1e-8, atol=1e-9)  # fmt: skip


@pytest.mark.parametrize("kind", ["integrated", "shapley"])
def test_what_is_left_is_the_value_at_the_baseline(kind: str) -> None:
    model, x = made("deep")
    rule = nrm.IntegratedGradients if kind == "integrated" else nrm.Shapley
    count = {"steps": 400} if kind == "integrated" else {"samples": 3}
    R = nrm.measure(model, x, rules=rule(["a"], baseline=0.3, **count), bias="input")
    left = (R(R["a.bias"], given=R["a"]) * R.values("a")[:, None]).sum(1)
    expected = model.a(torch.full_like(x, 0.3)).detach()
    torch.testing.assert_close(left, expected, rtol=0, atol=1e-5 if kind == "integrated" else 1e-12)


# --- the same notation ---


@every_rule
def test_partitions_flows_walks_and_differences(kind: str) -> None:
    model, x = made("cnn")
    R = nrm.measure(model, x, target=0, rules=RULES[kind](), bias="input")
    a, b = R["a"], R["b"]
    table = R(a.channels, b.positions)
    torch.testing.assert_close(table, R(a, b).sum((2, 3)), rtol=1e-9, atol=1e-9)
    assert [heat.shape for _, heat in R.each(a.channels, R.input)] == [(2, 1, 4)] * 2
    found = R.flows(a, b, k=3, sign="abs")
    assert all(found.certified)
    joint = R(a, b).flatten(1).abs()
    for s in range(2):
        best = [abs(f.relevance) for f in found[s]]
        torch.testing.assert_close(torch.tensor(best, dtype=torch.float64), joint[s].topk(3).values)
    walk = R.walks(k=1)[0][0]
    assert float(R(*walk)) == pytest.approx(walk.relevance)
    D = R - nrm.measure(model, x, target=1, rules=RULES[kind](), bias="input")
    torch.testing.assert_close(sum(D(p.all) for p in D.inputs), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-8)
    assert R.plan(a, b).flops > 0


def test_a_search_for_flows_over_blocks_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nrm.search.flows.AFFORDABLE", 0.0)
    monkeypatch.setattr("nrm.search.flows.SMALL", 1e-9)
    model, x = made("deep")
    for kind in RULES:
        R = nrm.measure(model, x, rules=RULES[kind]())
        found = R.flows(R.input, R["a"], R["b"], k=4, sign="abs", effort=1e9)
        assert all(found.certified)
        joint = R(R.input, R["a"], R["b"]).flatten(1).abs()
        for s in range(2):
            best = torch.tensor([abs(f.relevance) for f in found[s]], dtype=torch.float64)
            torch.testing.assert_close(best, joint[s].topk(4).values)


def test_flows_over_blocks_without_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where single entries are too many, the whole table certifies a list; without it the list says what it is."""
    monkeypatch.setattr("nrm.search.flows.AFFORDABLE", 0.0)
    monkeypatch.setattr("nrm.search.flows.SMALL", 1e-9)
    monkeypatch.setattr("nrm.operators.jacobian.LARGEST", 1)
    model, x = made("deep")
    R = nrm.measure(model, x, rules=nrm.Gradient())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(R.flows(R.input, R["a"], R["b"], k=2, effort=1e9).certified)
    with pytest.warns(nrm.NrmWarning, match="no bound"):
        assert not any(R.flows(R.input, R["a"], R["b"], k=2, effort=1e-9).certified)


@every_rule
def test_formulas_and_additive_relevance(kind: str) -> None:
    model, x = made("deep")
    R = nrm.measure(model, x, rules=RULES[kind](), bias="ignore")
    a, b, one = R["a"].channel(1), R["b"].channel([0, 2]), torch.ones(2, dtype=torch.float64)
    avoiding = R(R.input, ~nrm.visits(a) & nrm.visits(b))
    torch.testing.assert_close(avoiding, R(R.input, b) - R(R.input, a, b), rtol=1e-8, atol=1e-9)
    layers = [R.input, R["a"], R["b"], R.output]
    torch.testing.assert_close(sum(R.additive(layer.all) for layer in layers), one, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(R.additive(a), R(a) / 4, rtol=1e-8, atol=1e-9)


def test_several_inputs_and_other_sample_axes() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.join, self.head = nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            h = torch.tanh(self.join(torch.tanh(self.a(x)) * self.b(y)))
            return self.head(h.mean(0))

    torch.manual_seed(0)
    model = Two().double()
    x, y = torch.randn(4, 2, 2, dtype=torch.float64), torch.randn(4, 2, 3, dtype=torch.float64)
    for kind, rule in RULES.items():
        if kind == "shapley":
            rule = nrm.Shapley
        R = nrm.measure(model, (x, y), target=0, rules=rule(["join"]), bias="input", batch_dim=1)
        torch.testing.assert_close(sum(R(p.all) for p in R.inputs), torch.ones(2, dtype=torch.float64))
        first = R(R["input[0]"], R["join"].channels)
        assert first.shape == (2, 4, 2, 3)
        with pytest.raises(nrm.QuestionError, match="the model has 2 inputs"):
            R(R.input)
        if kind == "gradient":
            slopes = jacobian(lambda h: model.join(torch.tanh(model.a(h)) * model.b(y)), x)
            entries = slopes * x / R.values("join").movedim(0, 1)[..., None, None, None]
            truth = torch.einsum("tbjsbi,btj->bsij", entries, R(R["join"]))
            torch.testing.assert_close(first, truth, rtol=1e-8, atol=1e-10)


@every_rule
@pytest.mark.parametrize("bias", ["ignore", "input"])
def test_two_inputs_are_two_halves_of_one(kind: str, bias: str) -> None:
    """On the way from the baseline all inputs move together, and all their neurons are players of one game."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(2, 3), nn.Linear(1, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.head(torch.tanh(self.a(x)) * self.b(y) + torch.sigmoid(self.b(y)))

    class One(Two):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x[:, :2], x[:, 2:])

    torch.manual_seed(0)
    two, one = Two().double(), One().double()
    one.load_state_dict(two.state_dict())
    x = torch.randn(2, 3, dtype=torch.float64)
    R = nrm.measure(two, (x[:, :2], x[:, 2:]), target=0, rules=RULES[kind](["head.input"]), bias=bias)
    S = nrm.measure(one, x, target=0, rules=RULES[kind](["head.input"]), bias=bias)
    layer = R["head"].input
    halves = [R(R[f"input[{i}]"], layer) for i in (0, 1)]
    torch.testing.assert_close(torch.cat(halves, 1), S(S.input, layer), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(R(layer), S(layer), rtol=1e-9, atol=1e-9)


# --- Shapley values by drawing ---


def test_drawn_orders_approach_the_exact_values() -> None:
    model, x = made("deep", batch=1)
    exact = nrm.measure(model, x, rules=nrm.Shapley(["a"], samples=10**6), bias="input")
    errors = []
    for samples in (1, 400):

        def draw(step: object, count: int, samples: int = samples) -> Tensor:
            return nrm.Shapley(samples=samples)._over_orders(step, count)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("nrm.rules.between._over_subsets", draw)
            drawn = nrm.measure(model, x, rules=nrm.Shapley(["a"], samples=10**6), bias="input")
        errors.append(float((drawn(drawn.input, drawn["a"]) - exact(exact.input, exact["a"])).abs().max()))
        shares = [R(R["a.bias"], given=R["a"]) for R in (drawn, exact)]  # columns have the same sums
        torch.testing.assert_close(*shares, rtol=1e-9, atol=1e-9)
    assert errors[0] > 1e-3
    assert errors[1] < errors[0] / 4


def test_drawn_orders_are_the_same_every_time() -> None:
    model, x = made("cnn")
    one, other = (nrm.measure(model, x, rules=nrm.Shapley(samples=2)) for _ in range(2))
    assert torch.equal(one(one.input), other(other.input))


# --- which layers ---


def test_a_module_that_is_called_several_times() -> None:
    """All its calls are steps; if some of them are left out, the others keep their numbers."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cell(self.cell(self.cell(x))))

    torch.manual_seed(0)
    model, x = Loop().double(), torch.randn(2, 3, dtype=torch.float64)
    R = nrm.measure(model, x, rules=nrm.Gradient())
    assert [row.name for row in R.layers] == ["input", "cell#0", "cell#1", "cell#2", "head"]
    torch.testing.assert_close(R(R["cell"].steps)[:, 1], R(R["cell#1"].all))
    with pytest.raises(nrm.QuestionError, match="called 3 times"):
        R(R["cell"])
    S = nrm.measure(model, x, rules=nrm.Gradient(["cell#1"]))
    torch.testing.assert_close(S(S["cell#1"]), R(R["cell#1"]))
    with pytest.raises(nrm.QuestionError, match="unknown layer 'cell#0'"):
        S["cell#0"]


def test_top_level_blocks_are_the_default() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.left, self.right, self.head = (nn.Linear(3, 3) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            h = self.stem(x)
            return self.head(torch.relu(self.left(h)) + self.right(h))

    R = nrm.measure(Net(), torch.rand(1, 3), rules=nrm.Gradient())
    assert [row.name for row in R.layers] == ["input", "stem", "head"]  # the branches are passed by


def test_layers_may_be_values_in_any_order() -> None:
    model, x = made("deep")
    R = nrm.measure(model, x, rules=nrm.Gradient([nrm.layer("b"), "a", "input", "output", "a"]))
    assert [row.name for row in R.layers] == ["input", "a", "b", "head"]
    assert "layers=['b', 'a', 'input', 'output', 'a']" in repr(R)


def test_ops_without_a_rule_are_no_obstacle() -> None:
    class Exponential(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.matrix_exp(x.view(-1, 2, 2)).flatten(1)

    model = nn.Sequential(nn.Linear(3, 4), Exponential(), nn.Linear(4, 2))
    with pytest.raises(nrm.CaptureError, match="no rule"):
        nrm.measure(model, torch.rand(1, 3), rules="lrp-0")
    R = nrm.measure(model, torch.rand(1, 3), rules=nrm.Gradient())
    torch.testing.assert_close(sum(R(p.all) for p in R.inputs), torch.ones(1))


def test_writes_in_place_are_followed() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x).clone()
            h[:, 1:3] = torch.tanh(h[:, :2]) * 2
            h.mul_(0.5)
            h += h.flip(1)
            return self.head(h)

    torch.manual_seed(0)
    model, x = Writes().double(), torch.randn(2, 3, dtype=torch.float64)
    R = nrm.measure(model, x, target=0, rules=nrm.Gradient([]), bias="ignore")
    h = x.clone().requires_grad_()
    g = torch.autograd.grad(model(h)[:, 0].sum(), h)[0] * x
    torch.testing.assert_close(R(R.input), g / g.sum(1, keepdim=True))


def test_half_precision_models_and_no_trace() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).bfloat16()
    x = torch.rand(2, 4)
    R = nrm.measure(model, x, rules=nrm.IntegratedGradients(["1"]))
    assert R(R.input, R["1"]).dtype == torch.float32
    assert R.check(strict=False).moved is not None
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    with torch.inference_mode():
        S = nrm.measure(model, x, rules=nrm.Gradient(["1"]))
        assert S(S.input).shape == (2, 4)


# --- mistakes ---


def test_a_bypass_is_named() -> None:
    model, x = made("residual")
    with pytest.raises(nrm.RuleError, match=r"not everything passes layer 'a\.down'") as error:
        nrm.measure(model, x, rules=nrm.Gradient(["a", "a.down"]))
    assert "from 'input' to 'a/add'" in str(error.value)


def test_an_input_that_enters_later_is_a_bypass() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.head = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.head(self.a(x) + y)

    with pytest.raises(nrm.RuleError, match="not everything passes layer 'a'") as error:
        nrm.measure(Late(), (torch.rand(1, 2), torch.rand(1, 2)), rules=nrm.Gradient(["a"]))
    assert "input[1]" in str(error.value)


def test_unknown_layers() -> None:
    model, x = made("deep")
    with pytest.raises(nrm.QuestionError, match="unknown layer 'heads'") as error:
        nrm.measure(model, x, rules=nrm.Occlusion(["a", "heads"]))
    assert "layers of Occlusion" in str(error.value)
    R = nrm.measure(model, x, rules=nrm.Gradient(["a"]))
    with pytest.raises(nrm.QuestionError, match="unknown layer 'b'"):
        R["b"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: nrm.Gradient("a"), "not a list of layers"),
        (lambda: nrm.Gradient([3]), "not a layer"),
        (lambda: nrm.Gradient([nrm.Layer("a", consumer="b")]), "not a layer"),
        (lambda: nrm.IntegratedGradients(steps=0), "not a number of steps"),
        (lambda: nrm.Shapley(samples=2.5), "not a number of samples"),
        (lambda: nrm.Occlusion(baseline="mean"), "not a baseline"),
        (lambda: nrm.Occlusion(baseline=float("nan")), "not finite"),
        (lambda: nrm.Shapley(baseline={"input": torch.tensor([float("inf")])}), "not finite"),
        (lambda: nrm.Shapley(baseline={3: 0.0}), "not a layer"),
    ],
)
def test_bad_options(make: Callable[[], object], text: str) -> None:
    with pytest.raises(nrm.RuleError, match=text):
        make()


def test_baselines_by_layer() -> None:
    model, x = made("deep")
    base = torch.rand(3, dtype=torch.float64)
    one = nrm.measure(model, x, rules=nrm.Occlusion(["a"], baseline={"input": base}))
    other = nrm.measure(model, x, rules=nrm.Occlusion(["a"], baseline={"input": base.expand(2, 3), "a": 0}))
    plain = nrm.measure(model, x, rules=nrm.Occlusion(["a"]))
    assert torch.equal(one(one.input), other(other.input))
    assert not torch.allclose(one(one.input), plain(plain.input))
    by_value = nrm.measure(model, x, rules=nrm.Occlusion(["a"], baseline={nrm.input: base}))
    assert torch.equal(one(one.input), by_value(by_value.input))
    assert "baseline={'input': <tensor (3,)>}" in repr(by_value)
    with pytest.raises(nrm.RuleError, match="the baseline does not fit layer 'input'") as error:
        nrm.measure(model, x, rules=nrm.Occlusion(["a"], baseline=torch.rand(5)))
    assert "(3,)" in str(error.value)
    with pytest.raises(nrm.RuleError, match=r"(?s)the model has 2 inputs.*'input\[0\]', 'input\[1\]'"):
        nrm.measure(nn.Bilinear(2, 2, 2), (x[:, :2].float(),) * 2, rules=nrm.Occlusion([], baseline={"input": 1.0}))
    with pytest.raises(nrm.RuleError, match="no step starts"):
        nrm.measure(model, x, rules=nrm.Occlusion(["a"], baseline={"b": 0.0}))
    with pytest.raises(nrm.QuestionError, match=r"(?s)unknown layer 'inptu'.*baseline of Occlusion"):
        nrm.measure(model, x, rules=nrm.Occlusion(["a"], baseline={"inptu": 0.0}))


def test_entries_that_do_not_fit_are_refused_before_they_are_formed() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3000, 3000), nn.Tanh(), nn.Linear(3000, 2))
    for rule in (nrm.Occlusion(["2"]), nrm.Shapley(["2"])):
        with pytest.raises(nrm.MemoryLimitError, match="larger than the memory bound"):
            nrm.measure(model, torch.rand(2, 3000), rules=rule, memory="50 MiB")
    R = nrm.measure(model, torch.rand(2, 3000), rules=nrm.Gradient(["2"]), memory="50 MiB")
    assert R(R.input, R["2"].channel(7)).shape == (2, 3000)


def test_memory_and_effort_are_those_of_the_whole_network() -> None:
    model = nn.Sequential(nn.Linear(100, 200), nn.Tanh(), nn.Linear(200, 2))
    x = torch.rand(2, 100)
    plain = nrm.measure(model, x)
    implicit = nrm.measure(model, x, rules=nrm.Gradient(["1"]))
    formed = nrm.measure(model, x, rules=nrm.Occlusion(["1"]))
    assert implicit.nbytes >= plain.inner.tape.nbytes
    assert formed.nbytes >= 2 * 100 * 200 * 4
    assert implicit.plan(implicit.input).forward == plain.plan(plain.input).forward


def test_functions_without_derivatives() -> None:
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.abs().sqrt()

    model = nn.Sequential(Root(), nn.Linear(2, 2))
    with pytest.raises(nrm.RuleError, match="not finite") as error:
        nrm.measure(model, torch.zeros(1, 2), rules=nrm.Gradient(["0"]))
    assert "the block that ends at '0'" in str(error.value)


def test_derivatives_must_agree_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    from nrm.operators import Jacobian

    model, x = made("deep")
    apply = Jacobian.apply
    monkeypatch.setattr(Jacobian, "apply", lambda self, v: apply(self, v) * 1.001)
    with pytest.raises(nrm.RuleError, match="cannot be differentiated") as error:
        nrm.measure(model, x, rules=nrm.Gradient(["a"]))
    assert "the block that ends at 'a" in str(error.value)


def test_a_class_is_no_rule() -> None:
    model, x = made("deep")
    with pytest.raises(nrm.RuleError, match="a rule is an instance"):
        nrm.measure(model, x, rules=nrm.Gradient)


def test_random_draws_cannot_be_repeated() -> None:
    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.poisson(x.abs() * 50) + x

    with pytest.raises(nrm.CaptureError, match="same values again"):
        nrm.measure(nn.Sequential(Noise(), nn.Linear(3, 2)).eval(), torch.rand(1, 3) + 1, rules=nrm.Gradient(["0"]))


def test_changed_weights_are_noticed() -> None:
    model, x = made("residual")
    R = nrm.measure(model, x, rules=nrm.Gradient())
    with torch.no_grad():
        model.a.norm.weight.add_(1.0)
    with pytest.raises(nrm.NrmError, match="weights have changed"):
        R(R.input)


def test_columns_without_a_sum() -> None:
    """Two equal neurons of opposite signs: their gradients cancel in every column."""
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1)).double()
    model[0].weight.data = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    model[1].weight.data.fill_(1.0)
    model[1].bias.data.fill_(1.0)
    x = torch.ones(1, 2, dtype=torch.float64)
    for kind in RULES:
        R = nrm.measure(model, x, rules=RULES[kind]([]), bias="ignore", zero="uniform")
        torch.testing.assert_close(R(R.input), torch.full((1, 2), 0.5, dtype=torch.float64))
        S = nrm.measure(model, x, rules=RULES[kind]([]), bias="ignore", zero="error")
        with pytest.raises(nrm.MassError):
            S(S.input)

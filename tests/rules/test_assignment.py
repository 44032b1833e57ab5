"""Which rule a step gets: composites, mappings, coefficients, the unnormalized counterpart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.rules import NAMES
from nrm.testing import check_measure


def network(seed: int = 0) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 8), nn.ReLU(),
        nn.Linear(8, 3),
    )  # fmt: skip
    return model.double().eval(), torch.rand(2, 2, 8, 8, dtype=torch.float64)


def matrix_relevance(model: nn.Sequential, x: Tensor, target: int, entries: dict[int, str]) -> Tensor:
    """LRP by explicit matrices: for every layer its Jacobian's matrix, entries by rule, columns normalized."""
    values = [x[:1]]
    for layer in model:
        values.append(layer(values[-1]))
    message = torch.zeros(values[-1].numel(), dtype=torch.float64)
    message[target] = 1.0
    for k in reversed(range(len(model))):
        layer, h = model[k], values[k].flatten()
        if not isinstance(layer, nn.Conv2d | nn.Linear):
            continue
        matrix = torch.autograd.functional.jacobian(layer, values[k]).reshape(values[k + 1].numel(), h.numel())
        parts = h * matrix
        T = {
            "zero": parts,
            "plus": parts.clamp(min=0),
            "gamma": parts + 0.25 * parts.clamp(min=0),
            "flat": (matrix != 0).double(),
            "square": matrix.square(),
            "box": parts - 0.0 * matrix.clamp(min=0) - 1.0 * matrix.clamp(max=0),
        }.get(entries[k])
        if T is None:
            up, down = parts.clamp(min=0), (-parts).clamp(min=0)
            T = 2 * up / up.sum(1, keepdim=True) - down / down.sum(1, keepdim=True)
        sums = T.sum(1, keepdim=True)
        message = message @ torch.where(sums == 0, torch.zeros_like(T), T / sums)
    return message.reshape(x.shape[1:])


@pytest.mark.filterwarnings("ignore:Total variation")  # random weights: LRP-0 without biases cancels
@pytest.mark.parametrize(
    ("composite", "conv", "first"),
    [
        ("lrp-0", "zero", "zero"),
        ("epsilon-plus", "plus", "plus"),
        ("epsilon-plus-flat", "plus", "flat"),
        ("epsilon-alpha2-beta1", "alpha", "alpha"),
        ("epsilon-alpha2-beta1-flat", "alpha", "flat"),
        ("epsilon-gamma-box", "gamma", "box"),
        ("epsilon-gamma-flat", "gamma", "flat"),
    ],
)
def test_composites_against_explicit_matrices(composite: str, conv: str, first: str) -> None:
    model, x = network()
    rules = nrm.composite(composite, low=0.0, high=1.0)
    R = nrm.measure(model, x, target=1, rules=rules, bias="ignore")
    expected = matrix_relevance(model, x, 1, {0: first, 2: conv, 5: "zero", 7: "zero"})
    torch.testing.assert_close(R(R.input)[0], expected, rtol=1e-9, atol=1e-12)


def test_every_composite_has_a_name_and_its_changes_come_first() -> None:
    assert set(NAMES) >= {"lrp-0", "epsilon-plus", "epsilon-plus-flat", "epsilon-gamma-box"}
    model, x = network()
    changed = nrm.composite("epsilon-plus").but({"2": nrm.WSquare()})
    R = nrm.measure(model, x, target=1, rules=changed, bias="ignore")
    expected = matrix_relevance(model, x, 1, {0: "plus", 2: "square", 5: "zero", 7: "zero"})
    torch.testing.assert_close(R(R.input)[0], expected, rtol=1e-9, atol=1e-12)


def test_mappings_match_pattern_type_and_kind_and_the_first_match_wins() -> None:
    model, x = network()
    R = nrm.measure(
        model, x, target=1, bias="ignore",
        rules={"0": nrm.Flat(), nn.Conv2d: nrm.Gamma(0.25), "conv": nrm.WSquare(), "*": "lrp-0"},
    )  # fmt: skip
    expected = matrix_relevance(model, x, 1, {0: "flat", 2: "gamma", 5: "zero", 7: "zero"})
    torch.testing.assert_close(R(R.input)[0], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rules", [{"nothing.*": nrm.ZPlus()}, {3: nrm.ZPlus()}, {"0": "lrp-0"}, {"0": 5}, 7, "z-plus"])
def test_rules_that_mean_nothing_are_refused(rules: object) -> None:
    model, x = network()
    with pytest.raises(nrm.RuleError):
        nrm.measure(model, x, rules=rules)


def test_epsilon_is_lrp0_in_a_measure() -> None:
    model, x = network()
    a, b = (nrm.measure(model, x, rules=r)(nrm.input) for r in (nrm.LRP0(), nrm.Epsilon(10.0)))
    torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("bad", [lambda: nrm.AlphaBeta(1, 1), lambda: nrm.AlphaBeta(1, -1), lambda: nrm.Gamma(-0.1)])
def test_parameters_without_meaning_are_refused(bad: object) -> None:
    with pytest.raises(nrm.RuleError):
        bad()  # type: ignore[operator]


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.signal, self.head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sigmoid(self.gate(x)) * self.signal(x))


def test_a_gate_gets_nothing_unless_told_otherwise() -> None:
    torch.manual_seed(3)
    model, x = Gated().double(), torch.randn(2, 4, dtype=torch.float64)
    default = nrm.measure(model, x, rules="lrp-0")
    assert not bool(default(default["gate"].all).any())
    torch.testing.assert_close(default(default["signal"].all), default(default["/mul"].all))
    half = nrm.measure(model, x, rules={"*/mul": nrm.Product(gate=1, signal=1), "*": "lrp-0"})
    product = half(half["/mul"].channels)
    torch.testing.assert_close(half(half["/sigmoid"].channels), product / 2)
    torch.testing.assert_close(half(half["signal"].channels), product / 2)
    check_measure(half)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch, self.head = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.stem(x))
        return self.head(torch.relu(self.branch(h) + h))


def test_coefficients_of_a_sum_close_a_branch() -> None:
    torch.manual_seed(4)
    model, x = Residual().double(), torch.rand(2, 4, dtype=torch.float64)
    for closed, kept in (("skip", "branch"), ("branch", "skip")):
        rules = {"*/add": nrm.Sum({closed: 0.0, kept: 1.0}), "*": "epsilon-plus"}
        R = nrm.measure(model, x, rules=rules, bias="ignore", zero="uniform")
        parts = {"branch": R["branch"], "skip": R["/add"].skip}
        assert not bool(R(parts[closed].all).any())
        torch.testing.assert_close(R(parts[kept].all), R(R["/add"].all))
        check_measure(R)


def test_two_alpha_beta_rules_cannot_share_a_column() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) + self.b(x)

    with pytest.raises(nrm.RuleError, match="one column"):
        nrm.measure(Two(), torch.ones(1, 3), rules={"a": nrm.AlphaBeta(2, 1), "b": nrm.AlphaBeta(3, 1)})


def test_the_unnormalized_counterpart_leaks_as_in_the_literature() -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 2, bias=False)).double()
    x = torch.rand(1, 4, dtype=torch.float64)
    R = nrm.measure(model, x, target=0, rules=nrm.Epsilon(0.5), normalize=False)
    found = R(R.input)[0]
    hidden = model[1](model[0](x))[0]
    top = hidden * model[2].weight[0] / (0.5 + model(x)[0, 0])
    first = x[0] * model[0].weight / (0.5 + model[0](x)[0])[:, None]
    torch.testing.assert_close(found, top @ first)
    A = nrm.measure(model, x, target=0, rules=nrm.AlphaBeta(1.5, 0), normalize=False)
    assert float(A(A.output.all)) == 1.0
    assert float(A(A["1"].all)) == pytest.approx(1.5)
    assert float(A(A.input.all)) == pytest.approx(2.25)
    W = nrm.measure(model, x, target=0, rules=nrm.LRP0(), normalize="raw")
    products = (hidden * model[2].weight[0]) @ (x[0] * model[0].weight)
    torch.testing.assert_close(W(W.input)[0], products)


def test_auto_says_what_it_chose() -> None:
    model, x = network()
    assert "epsilon-plus-flat" in repr(nrm.measure(model, x))
    mlp = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    text = repr(nrm.measure(mlp, torch.ones(1, 3)))
    assert "lrp-0" in text
    assert "'input'" in text


class Reader(nn.Module):
    """Convolutions with ReLUs, whose columns a gated cell reads one after the other."""

    def __init__(self, *, unrolled: bool) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU()
        )
        self.unrolled = unrolled
        self.cell = nn.GRUCell(32, 12) if unrolled else nn.GRU(32, 12, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        columns = self.convolutions(x).permute(0, 3, 1, 2).flatten(2)
        if not self.unrolled:
            found: Tensor = self.head(self.cell(columns)[0][:, -1])
            return found
        state = columns.new_zeros(len(x), 12)
        for t in range(columns.shape[1]):
            state = self.cell(columns[:, t], state)
        logits: Tensor = self.head(state)
        return logits


@pytest.mark.parametrize("unrolled", [True, False])
def test_auto_takes_signed_rules_for_a_gated_cell_behind_convolutions(unrolled: bool) -> None:
    torch.manual_seed(0)
    R = nrm.measure(Reader(unrolled=unrolled).eval(), torch.rand(2, 1, 8, 8), progress=False)
    assert "lrp-0" in repr(R)
    total = sum(R(part.all) for part in R.inputs)
    torch.testing.assert_close(total, torch.ones(2), rtol=0, atol=1e-4)


def test_auto_keeps_positive_rules_where_an_activation_follows_the_sum() -> None:
    class Gated(nn.Module):
        """Squeeze and excitation: a channel-wise gate on signed values, added to the stream before a ReLU."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.gate = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x).relu()
            y = self.second(x)
            y = y * self.gate(y.mean((2, 3))).sigmoid()[:, :, None, None]
            logits: Tensor = self.head((x + y).relu().mean((2, 3)))
            return logits

    torch.manual_seed(0)
    assert "epsilon-plus-flat" in repr(nrm.measure(Gated().eval(), torch.rand(1, 1, 8, 8), progress=False))

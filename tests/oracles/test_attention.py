"""A tiny attention layer, every walk one by one, under the three rules of attention."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nrm
from oracles import brute
from oracles.brute import Block, Network

T, D = 3, 2


class Tiny(nn.Module):
    """One head, three positions, two channels; a causal mask if asked."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.out = nn.Linear(T * D, 2)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).mT
        if self.causal:
            scores = scores + torch.full((T, T), -torch.inf, dtype=x.dtype).triu(1)
        return self.out((torch.softmax(scores, -1) @ self.v(x)).flatten(1))


def jacobian(function: object, x: Tensor) -> Tensor:
    """The matrix of a linear function, inputs by outputs."""
    return torch.autograd.functional.jacobian(function, x).reshape(-1, x.numel()).T  # type: ignore[arg-type]


def dense(model: Tiny, x: Tensor, rule: str) -> Network:
    """The layer as matrices, written from the definitions."""
    net = Network(bias="input")
    net.source("x", x)
    per_position = torch.eye(T, dtype=torch.float64)
    for name in "qkv":
        layer = getattr(model, name)
        weight, shift = torch.kron(per_position, layer.weight.T.contiguous()), layer.bias.repeat(T)
        net.affine(name, [Block("x", weight)], shift, channel=torch.arange(T * D) % D)
    q, k, v = (net.values[name].reshape(T, D) for name in "qkv")
    scores = q @ k.T
    if model.causal:
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
    s = scores.softmax(-1)
    from_q, from_k = jacobian(lambda t: t @ k.T, q), jacobian(lambda t: q @ t.T, k)
    net.step("z", [Block("q", from_q, alpha=0.5), Block("k", from_k, alpha=0.5)], q @ k.T)
    net.values["z"] = scores.flatten()
    if rule == "softmax":
        logits = (scores - scores.amax(-1, keepdim=True)).masked_fill(s == 0, 0.0)
        entries = torch.zeros(T * T, T * T, dtype=torch.float64)
        for t in range(T):
            rows = slice(t * T, (t + 1) * T)
            entries[rows, rows] = logits[t][:, None] * s[t][None] * (per_position - s[t][:, None])
        net.step("s", [Block("z", entries, None)], s, shift=s.flatten() - entries.sum(0))
    else:
        net.step("s", [Block("z", torch.eye(T * T, dtype=torch.float64), None)], s)
    from_s, from_v = jacobian(lambda t: t @ v, s), jacobian(lambda t: s @ t, v)
    weights = 0.0 if rule == "constant" else 0.5
    net.step("a", [Block("s", from_s, alpha=weights), Block("v", from_v, alpha=1 - weights)], s @ v)
    net.affine("out", [Block("a", model.out.weight.T)], model.out.bias)
    return net


RULES: dict[str, object] = {
    "constant": "transformer",
    "half": {"*": "transformer", "matmul": nrm.Product(gate=1, signal=1)},
    "softmax": {"*": "transformer", "matmul": nrm.Product(gate=1, signal=1), "softmax": nrm.SoftmaxRule()},
}


def edges_by_walks(found: list[tuple[brute.Walk, float]]) -> Tensor:
    """The relevance of every query and key: walks that go through the value at the key, or through the weight."""
    total = torch.zeros(T, T, dtype=torch.float64)
    for walk, relevance in found:
        at = dict(walk)
        if "v" in at and "a" in at:
            total[at["a"] // D, at["v"] // D] += relevance
        elif "s" in at:
            total[at["s"] // T, at["s"] % T] += relevance
    return total


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_the_three_rules_of_attention(rule: str, causal: bool, seed: int) -> None:
    torch.manual_seed(seed)
    model, x = Tiny(causal).double(), torch.randn(2, T, D, dtype=torch.float64)
    R = nrm.measure(model, x, rules=RULES[rule], target=1)
    assert R.check(strict=False).cut_error < 1e-9  # type: ignore[operator]
    for sample in range(2):
        with torch.no_grad():
            net = dense(model, x[sample], rule).explain("out", 1)
        torch.testing.assert_close(net.values["out"], R.values(R.output)[sample])
        found = brute.walks(net, limit=10**6)
        scale = sum(abs(r) for _, r in found)
        each = torch.arange(T * D)
        for layer, name in ((R.input, "x"), (R["v"], "v")):
            mine = R(layer)[sample].flatten()
            torch.testing.assert_close(brute.table(found, [(name, each)]), mine, rtol=1e-9, atol=1e-11 * scale)
        torch.testing.assert_close(
            edges_by_walks(found), R(R["/matmul#1"].edges)[sample, 0], rtol=1e-9, atol=1e-11 * scale
        )
        joint = R(R.input, R["v"])[sample].reshape(T * D, T * D)
        expected = brute.table(found, [("x", each), ("v", each)])
        torch.testing.assert_close(expected, joint, rtol=1e-9, atol=1e-11 * scale)


def test_attn_lrp_is_the_half_with_the_softmax_rule() -> None:
    torch.manual_seed(0)
    model, x = Tiny(False).double(), torch.randn(2, T, D, dtype=torch.float64)
    one, two = (nrm.measure(model, x, rules=rules, target=0) for rules in ("attn-lrp", RULES["softmax"]))
    torch.testing.assert_close(one(one.input), two(two.input))
    assert "softmax" in " ".join(map(str, one.inputs))


def test_the_remainder_can_be_asked_for() -> None:
    """Pull and push agree at the neuron that takes what the logits do not explain."""
    torch.manual_seed(0)
    model, x = Tiny(False).double(), torch.randn(1, T, D, dtype=torch.float64)
    R = nrm.measure(model, x, rules="attn-lrp", target=0)
    rest = next(part for part in R.inputs if str(part).endswith("softmax.offset"))
    table = R(rest, R["out"].input)
    torch.testing.assert_close(table.flatten(1).sum(1), R(rest.all))
    torch.testing.assert_close(R(rest.all, R["out"].input[2]), table[..., 2].flatten(1).sum(1))


def test_shares_of_a_product_by_number() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.down = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))

    torch.manual_seed(0)
    model, x = Gated().double(), torch.randn(1, 3, dtype=torch.float64)
    for shares in ((0.0, 1.0), (1.0, 0.0), (1.0, 3.0)):
        R = nrm.measure(model, x, rules={"*": "transformer", "*/mul": nrm.Product(shares=shares)})
        whole = R(R["/mul"].all)
        torch.testing.assert_close(R(R["gate"].all), whole * shares[0] / sum(shares))
        torch.testing.assert_close(R(R["up"].all), whole * shares[1] / sum(shares))
    with pytest.raises(nrm.RuleError, match="do not fit"):
        nrm.measure(model, x, rules={"*/mul": nrm.Product(shares=(1.0,))})

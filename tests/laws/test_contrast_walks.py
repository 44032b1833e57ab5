"""Law 15: single walks of a contrast, through steps that mix by their differences, are those that brute force lists."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import assume, given, strategies as st
from torch import Tensor, nn

import nrm
from laws.agreement import law_of_each
from oracles.paired import Run

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")

CHAINS: dict[str, tuple[int, list[nn.Module]]] = {
    "layer norm": (3, [nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2)]),
    "rms norm": (3, [nn.Linear(3, 4), nn.RMSNorm(4), nn.Linear(4, 2)]),
    "group norm": (2, [nn.Linear(2, 4), nn.GroupNorm(2, 4), nn.Tanh(), nn.Linear(4, 2)]),
    "softmax": (3, [nn.Linear(3, 4), nn.Softmax(-1), nn.Linear(4, 2)]),
    "log softmax": (3, [nn.Linear(3, 3), nn.LogSoftmax(-1)]),
    "maximum": (4, [nn.Linear(4, 6), nn.MaxPool1d(2), nn.LayerNorm(3), nn.Linear(3, 2)]),
}


def all_walks(model: nn.Sequential, x: Tensor, other: Tensor) -> list[float]:
    """The relevance of every walk of a chain: the product of the Jacobians of single steps, by the definitions."""
    run = Run(model, (x,), (other,), 0)
    names = ["input", *(str(k) for k in range(len(model)))]
    tensors = [run.tensors[name] for name in names]
    entries = []
    for below, above in itertools.pairwise(tensors):
        rows = [torch.autograd.grad(one, below, retain_graph=True)[0].flatten() for one in above.flatten()]
        entries.append(torch.stack(rows, 1))  # (below, above)
    found = []
    for walk in itertools.product(*(range(t.numel()) for t in tensors[:-1])):
        value = tensors[0].flatten()[walk[0]]
        for entry, i, j in zip(entries, walk, (*walk[1:], 0), strict=True):
            value = value * entry[i, j]
        found.append(float((value / run.explained).detach()))
    return found


@pytest.mark.parametrize("kind", CHAINS)
@law_of_each
@given(seed=st.integers(0, 2**20))
def test_the_best_walks_of_a_chain_are_those_of_the_list(kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    width, layers = CHAINS[kind]
    model = nn.Sequential(*layers).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    x, other = torch.randn(2, 1, width, dtype=torch.double)
    R = nrm.measure(model, x, against=other, target=0)
    assume(float(R.value.abs()) > 1e-3)
    truth = all_walks(model, x, other)
    largest = max(map(abs, truth))
    for sign, key in (("+", max), ("-", min), ("abs", None)):
        (found,) = R.walks(k=5, sign=sign)
        wanted = [t for t in truth if key is None or t * (1 if sign == "+" else -1) > 0]
        wanted = [t for t in sorted(wanted, key=abs, reverse=True) if abs(t) > 1e-9 * largest][:5]
        many = [w.relevance for w in found for _ in range(w.multiplicity)][: len(wanted)]
        assert [abs(r) for r in many] == pytest.approx([abs(t) for t in wanted], rel=1e-7, abs=1e-12 * largest)
        for walk in found[:2]:
            if walk.multiplicity == 1:
                assert float(R(*walk)) == pytest.approx(walk.relevance, rel=1e-7, abs=1e-11 * largest)


class Head(nn.Module):
    """One head of attention with norms: products, a softmax, and sums of several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q, self.k, self.v = nn.LayerNorm(2), *(nn.Linear(2, 2) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        a = (self.q(h) @ self.k(h).mT).softmax(-1)
        return (x + a @ self.v(h))[:, -1]


@law_of_each
@given(seed=st.integers(0, 2**20))
def test_all_walks_of_an_attention_step_add_up_to_the_difference(seed: int) -> None:
    torch.manual_seed(seed)
    model = Head().double()
    x, other = torch.randn(2, 1, 2, 2, dtype=torch.double)
    R = nrm.measure(model, x, against=other, target=0)
    assume(float(R.value.abs()) > 1e-2)
    (walks,) = R.walks(k=2000, sign="abs")
    assert sum(w.relevance * w.multiplicity for w in walks) == pytest.approx(1.0, abs=1e-6)
    for walk in walks[:4]:
        if walk.multiplicity == 1:
            assert float(R(*walk)) == pytest.approx(walk.relevance, rel=1e-6, abs=1e-9)

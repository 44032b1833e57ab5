"""Branches that several steps read, as in DenseNet: their column sums are added up once, and are the same."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

import nrm
from counting import Counting
from nrm.operators import Place
from nrm.steps import Network
from nrm.steps.maps import Local, Map, Scaled, risen


class DenseBlock(nn.Module):
    """Every layer reads what all layers before it have made."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        torch.manual_seed(depth)
        self.first = nn.Conv2d(1, 2, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(2 * (k + 1)) for k in range(depth))
        self.layers = nn.ModuleList(nn.Conv2d(2 * (k + 1), 2, 3, padding=1) for k in range(depth))
        self.head = nn.Linear(2 * (depth + 1), 2)
        for norm in self.norms:
            nn.init.normal_(norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        made = [self.first(x)]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            made.append(layer(torch.relu(norm(torch.cat(made, 1)))))
        return self.head(torch.relu(torch.cat(made, 1)).mean((2, 3)))


def _measure(depth: int, rules: object) -> nrm.Measure:
    x = torch.randn(2, 1, 4, 4, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    return nrm.measure(DenseBlock(depth).double().eval(), x, rules=rules, target=0, bias="input")


@pytest.mark.parametrize("rule", [nrm.ZPlus(), nrm.Gamma(0.3), nrm.LRP0(), nrm.AlphaBeta(2, 1)])
def test_what_is_shared_makes_no_difference(rule: nrm.Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {"head": nrm.LRP0(), "*": rule}
    shared = _measure(4, rules)
    node, number = Network.node, itertools.count()

    def separate(self: Network, key: tuple[object, ...], tensor: int, kind: str, port: str = "") -> object:
        return node(self, (*key, next(number)) if kind == "branch" else key, tensor, kind, port)

    monkeypatch.setattr(Network, "node", separate)
    alone = _measure(4, rules)
    assert len(alone.inner.network.nodes) > len(shared.inner.network.nodes)
    for question in (lambda R: R(R.input), lambda R: R(R["first"].channels, R["layers.2"].channels)):
        torch.testing.assert_close(question(shared), question(alone), rtol=1e-12, atol=1e-12)


def test_a_dense_block_costs_products_in_proportion_to_its_depth() -> None:
    counts = []
    for depth in (4, 8, 16):
        R = _measure(depth, {"head": nrm.LRP0(), "*": nrm.ZPlus()})
        with Counting() as counting:
            R(R.input)
        counts.append(counting.count)
    assert counts[2] - counts[1] <= 2.5 * (counts[1] - counts[0])


def test_nothing_shared_is_held_after_the_sweep() -> None:
    R = _measure(4, {"head": nrm.LRP0(), "*": nrm.ZPlus()})
    R(R.input)
    network = R.inner.network
    assert not any(part._units for part in (network, *network._twins.values()))


@pytest.mark.parametrize("stack", [1, 3])
def test_what_rises_by_many_maps_is_their_sum(stack: int) -> None:
    """Pieces of a concatenation, put into one tensor, beside maps of other kinds, and what is added already."""
    torch.manual_seed(0)
    inside, outside = torch.Size([2, 3]), torch.Size([2, 9])
    carried: list[tuple[Map, Tensor]] = []
    for k, scale in enumerate([None, 2.0, torch.rand(inside)]):
        move = Place(inside, outside, (slice(None), slice(3 * k, 3 * k + 3)))
        rows = 1 if k == 1 else stack  # one amount goes with every one of a stack
        carried.append((Local(inside, outside, torch.float32, scale, move), torch.randn(rows, *inside)))
    carried.append(
        (
            Local(inside, outside, torch.float32, None, Place(inside, outside, (slice(None), slice(0, 3))), 3.0),
            torch.randn(stack, *inside),
        )
    )
    carried.append((Scaled(outside, lambda: torch.full(outside, 0.5)), torch.randn(stack, *outside)))
    added = torch.randn(stack, *outside)
    expected = sum((map.apply(a) for map, a in carried), added)
    torch.testing.assert_close(risen(carried, [added]), expected)
    assert risen([]) is None


@pytest.mark.parametrize("rule", [nrm.ZPlus(), nrm.LRP0()])
def test_masked_densities_and_amounts_cost_in_proportion_to_the_depth(rule: nrm.Rule) -> None:
    def products(depth: int) -> tuple[int, ...]:
        R = _measure(depth, {"head": nrm.LRP0(), "*": rule})
        R(R.input)
        low, high = R["first"], R[f"layers.{depth - 1}"]
        found = []
        for question in ((R.input, high[:, :2]), (low[:, 1:], high), (low.channel(1), high.channels)):
            with Counting() as counting:
                R(*question)
            found.append(counting.count)
        return tuple(found)

    few, many = products(5), products(10)
    assert all(0 < more <= 2.5 * one for one, more in zip(few, many, strict=True)), (few, many)

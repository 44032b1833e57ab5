"""Parts of several layers on one axis, and answers block by block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.measure.measure import Measure


class Net(nn.Module):
    """A residual sum, two parallel branches, a pool: layers on, beside and around each other's walks."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2, self.p = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.MaxPool2d(2)
        self.left, self.right, self.fc = nn.Conv2d(4, 3, 3), nn.Conv2d(4, 3, 3), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.c1(x))
        x = self.p(torch.relu(self.c2(x) + x))
        return self.fc(torch.cat([torch.relu(self.left(x)), torch.relu(self.right(x))], 1).flatten(1))


@pytest.fixture(scope="module")
def R() -> Measure:
    torch.manual_seed(0)
    model, x = Net().double(), torch.rand(2, 2, 8, 8, dtype=torch.float64)
    return nrm.measure(model, x, rules="lrp-0")


def pairwise(R: Measure, rows: nrm.questions.Stack, columns: nrm.questions.Stack) -> Tensor:
    """Every pair of partitions by a question of its own."""
    lines = []
    for p in rows.partitions:
        n = R(p).flatten(1).shape[1]
        lines.append(torch.cat([R(p, q).reshape(2, n, -1) for q in columns.partitions], 2))
    return torch.cat(lines, 1)


def test_the_interaction_graph_is_all_pairs(R: Measure) -> None:
    layers = [nrm.layer(name) for name in ("c1", "c2", "p", "left", "right")]
    everything = nrm.stack(*(layer.channels for layer in layers), nrm.layer("p").positions, nrm.input.channels)
    graph = R(everything, everything)
    assert graph.shape == (2, 4 + 4 + 4 + 3 + 3 + 16 + 2, 36)
    torch.testing.assert_close(graph, pairwise(R, everything, everything), rtol=0, atol=1e-12)
    torch.testing.assert_close(graph, graph.transpose(1, 2), rtol=0, atol=1e-12)
    assert bool((graph[:, 12:15, 15:18] == 0).all()), "parallel branches are never on one walk"
    some = nrm.stack(layers[4].channels[[2, 0]], layers[0].positions[2:4, 5])
    torch.testing.assert_close(R(everything, some), pairwise(R, everything, some), rtol=0, atol=1e-12)
    torch.testing.assert_close(R(some, everything), pairwise(R, some, everything), rtol=0, atol=1e-12)


def test_a_small_memory_gives_the_same(R: Measure) -> None:
    s = nrm.stack(nrm.layer("c1").channels, nrm.layer("p").positions, nrm.layer("left").channels)
    torch.manual_seed(0)
    small = nrm.measure(Net().double(), torch.rand(2, 2, 8, 8, dtype=torch.float64), rules="lrp-0", memory=30_000)
    torch.testing.assert_close(small(s, s), R(s, s), rtol=0, atol=1e-12)


def test_stacks_beside_other_arguments(R: Measure) -> None:
    a, b, c = (nrm.layer(name) for name in ("c1", "p", "left"))
    s = nrm.stack(a.channels, b.positions, c[0, 1, 1].layer.channels)
    marginals = torch.cat([R(a.channels), R(b.positions).flatten(1), R(c.channels)], 1)
    torch.testing.assert_close(R(s), marginals)
    event = nrm.input[:, :4]
    expected = torch.cat([R(event, p, nrm.output).reshape(2, -1, 3) for p in s.partitions], 1)
    torch.testing.assert_close(R(event, s, nrm.output), expected)
    given = R(s, given=c.channel(1))
    torch.testing.assert_close(given[:, :4], R(a.channels, given=c.channel(1)))
    assert R.sample(1)(s, s).shape == (1, 23, 23)


def test_its_text_says_that_it_need_not_add_up() -> None:
    s = nrm.stack(nrm.layer("a").channels, nrm.layer("b"))
    assert str(s) == "stack(a.channels, b)"
    assert repr(s).startswith("nrm.stack(nrm.layer('a').channels, nrm.layer('b'))")
    assert "need not add up to 1" in repr(s)
    assert s == nrm.stack(nrm.layer("a").channels, nrm.layer("b"))


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda R, s: nrm.stack(), "nothing to stack"),
        (lambda R, s: nrm.stack(nrm.layer("c1").channel(2)), "not a partition"),
        (lambda R, s: R(nrm.input, given=s), "no condition"),
        (lambda R, s: R.plan(nrm.input, given=s), "no condition"),
        (lambda R, s: R.flows(s), "one block of every layer"),
        (lambda R, s: bool(s), "no truth value"),
        (lambda R, s: next(R.each(nrm.layer("c1").channel(2))), "not a partition"),
    ],
)
def test_what_a_stack_is_not_for(R: Measure, ask: Any, text: str) -> None:
    with pytest.raises(nrm.QuestionError, match=text):
        ask(R, nrm.stack(nrm.layer("c1").channels))


def test_a_stack_that_is_too_large(R: Measure) -> None:
    torch.manual_seed(0)
    small = nrm.measure(Net().double(), torch.rand(2, 2, 8, 8, dtype=torch.float64), memory=10_000)
    s = nrm.stack(nrm.layer("c1"), nrm.layer("c2"))
    with pytest.raises(nrm.MemoryLimitError, match="block by block"):
        small(s, s)


def test_block_by_block_in_bounded_memory() -> None:
    torch.manual_seed(0)
    model, x = Net().double(), torch.rand(2, 2, 8, 8, dtype=torch.float64)
    wide = nrm.measure(model, x, rules="lrp-0")
    bound = 8 * 2 * (2 * 8 * 8) * 8  # eight heat maps
    R = nrm.measure(model, x, rules="lrp-0", memory=bound)
    a = nrm.layer("c1")
    with pytest.raises(nrm.MemoryLimitError):
        R(nrm.input, a.positions)
    whole = wide(a.positions, nrm.input).flatten(1, 2)
    found = list(R.each(a.positions, nrm.input))
    assert len(found) == 64
    for n, (block, heat) in enumerate(found):
        torch.testing.assert_close(heat, whole[:, n], rtol=0, atol=1e-12)
        torch.testing.assert_close(heat, wide(block, nrm.input), rtol=0, atol=1e-12)
    few = list(R.each(a.channels[[3, 1]], nrm.layer("left").channels, given=nrm.layer("p").channel(0)))
    assert [heat.shape for _, heat in few] == [(2, 3), (2, 3)]

"""The notation of R, form by form, against explicit matrices: what a user writes is what is computed."""

from __future__ import annotations

import copy
import itertools
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nrm

WIDTHS = (4, 5, 3, 2)
A, B = "1", "3"  # the hidden layers of the network below


def close(got: Tensor, wanted: Any) -> None:
    torch.testing.assert_close(got, torch.as_tensor(wanted, dtype=got.dtype), rtol=1e-9, atol=1e-12)


class Chain:
    """A network with positive weights and ReLU, and the tensor of all its walks, written out.

    ``walks[s, x, a, b, y]`` is the relevance of one walk of sample s: the product of the column-normalized entries.
    """

    def __init__(self, target: int = 1) -> None:
        generator = torch.Generator().manual_seed(0)
        weights = [torch.rand(m, n, generator=generator).double() + 0.1 for n, m in itertools.pairwise(WIDTHS)]
        layers = [nn.Linear(w.shape[1], w.shape[0], bias=False).double() for w in weights]
        for layer, w in zip(layers, weights, strict=True):
            layer.weight.data.copy_(w)
        self.model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
        self.x = torch.rand(3, WIDTHS[0], generator=generator).double() + 0.1
        h, walks = self.x, None
        for w in weights:
            products = h[:, :, None] * w.T[None]
            step = products / products.sum(1, keepdim=True)
            walks = step if walks is None else torch.einsum("s...a,sab->s...ab", walks, step)
            h = h @ w.T
        assert walks is not None
        self.walks = walks * F.one_hot(torch.tensor(target), WIDTHS[-1]).double()
        self.R = nrm.measure(self.model, self.x, target=target, rules="lrp-0")

    def sum(self, *keep: int) -> Tensor:
        """The marginal over the layers that are not kept: 0 is the input, 3 the output."""
        return self.walks.sum([1 + k for k in range(4) if k not in keep])


@pytest.fixture(scope="module")
def chain() -> Chain:
    return Chain()


class Pictures:
    """A small convolutional network; its pooled pictures are small enough for every mask."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(12, 5),
        ).double()  # fmt: skip
        self.R = nrm.measure(self.model, torch.rand(2, 2, 8, 8).double(), target=[1, 2])
        self.a = self.R["2"]
        self.full = self.R(self.a)


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    return Pictures()


# ---- values without tensors ------------------------------------------------------------------------------------------

a = nrm.layer("features.26")

PRINTED: list[tuple[Any, str]] = [
    (a, "features.26"),
    (nrm.input, "input"),
    (a.input, "features.26.input"),
    (a.skip, "features.26.skip"),
    (nrm.layer("a", "b/add"), "a -> b/add"),
    (a.channels, "features.26.channels"),
    (a.channels[[3, 7]], "features.26.channels[[3, 7]]"),
    (a.channels[2:5], "features.26.channels[2:5]"),
    (a.channels[7], "features.26.channel(7)"),
    (a.positions[4:8, 2], "features.26.positions[4:8, 2]"),
    (a.axis(0, 2), "features.26.axis(0, 2)"),
    (a.channel([1, 2]), "features.26.channel([1, 2])"),
    (a.channel([[1], [2, 3]]), "features.26.channel([[1], [2, 3]])"),
    (a.position((1, 2)), "features.26.position((1, 2))"),
    (a[:, 4:8, ..., -1, ::2] & ~a.channel(3), "features.26[:, 4:8, ..., -1, ::2] & ~features.26.channel(3)"),
    ((a[0] | a[1]) ^ (a.all - a[2]), "(features.26[0] | features.26[1]) ^ (features.26.all - features.26[2])"),
    (a.where([True, False]), "features.26.where([True, False])"),
    (a.where(torch.ones(3, 4) > 0), "features.26.where(<3x4 mask with 12 of 12>)"),
    (a.with_channels(1).channels, "features.26.with_channels(1).channels"),
]


@pytest.mark.parametrize(("value", "text"), PRINTED, ids=[text for _, text in PRINTED])
def test_values_print_compare_and_store(value: Any, text: str) -> None:
    assert str(value) == text
    for twin in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert twin == value
        assert hash(twin) == hash(value)
    assert value in {value: "stored"}
    if "<" not in text:
        assert eval(repr(value), {"nrm": nrm}) == value


def test_values_are_equal_by_what_they_say() -> None:
    assert a.channel(3) == a.channel(np.int64(3)) == a.channel(torch.tensor(3)) == a.channels[3]
    assert a.channel([1, 2]) == a.channel(range(1, 3)) == a.channel(np.array([1, 2])) == a.channel({2, 1})
    assert a.channel(3) != a.channel(4)
    assert a.channel(3) != nrm.layer("other").channel(3)
    assert a.where([True, False]) != a.where([True, True])
    assert len({a.channel(3), a.channel(3), a.channel([3])}) == 2


def test_values_do_not_change_with_what_they_were_made_from(chain: Chain) -> None:
    mask = torch.tensor([True, False, False])
    event = nrm.layer(B).where(mask)
    before = chain.R(event)
    mask[:] = True
    close(chain.R(event), before)


def test_values_are_used_with_every_measure(chain: Chain) -> None:
    question = (nrm.input, nrm.layer(A).channel(2), nrm.output[1])
    other = nrm.measure(chain.model, chain.x[:1], target=1, rules="epsilon-plus")
    close(chain.R(*question), chain.walks[:, :, 2, :, 1].sum(-1))
    close(other(*question), chain.walks[:1, :, 2, :, 1].sum(-1))


def test_a_measures_own_layer_is_the_same_value(chain: Chain) -> None:
    assert chain.R[A] == nrm.layer(A)
    assert chain.R[nrm.layer(A)] == nrm.layer(A)
    assert chain.R.input == nrm.input
    assert chain.R.output == nrm.output


@pytest.mark.parametrize("value", [a, a.channel(3), a.channels, ~a.all], ids=str)
def test_values_have_no_truth(value: Any) -> None:
    with pytest.raises(nrm.QuestionError, match=r"no truth value[\s\S]*& \| ~"):
        bool(value)
    with pytest.raises(nrm.QuestionError):
        value and a


def test_values_are_not_iterated() -> None:
    for value in (a, a.channels):
        with pytest.raises(TypeError):
            list(value)


# ---- marginals, joints, order ----------------------------------------------------------------------------------------


def test_marginals(chain: Chain) -> None:
    R = chain.R
    close(R(R.input), chain.sum(0))
    close(R(R[A]), chain.sum(1))
    close(R(R[B]), chain.sum(2))
    close(R(R.output), chain.sum(3))
    close(R(R[A].channels), chain.sum(1))
    close(R(R["0"]), chain.sum(1))
    close(R(R["2"].input), chain.sum(1))


def test_joint_tables_have_their_axes_in_the_order_of_the_arguments(chain: Chain) -> None:
    R = chain.R
    x, u, v = R.input, R[A], R[B]
    close(R(x, u), chain.sum(0, 1))
    close(R(u, x), chain.sum(0, 1).transpose(1, 2))
    close(R(x, v), chain.sum(0, 2))
    close(R(v, x, u), chain.sum(0, 1, 2).permute(0, 3, 1, 2))
    close(R(x, u, v, R.output), chain.walks)
    close(R(v.channel(1), x, u[3:]), chain.walks[:, :, 3:, 1].sum((2, 3)))


def test_two_sets_of_one_layer_intersect(chain: Chain) -> None:
    R = chain.R
    u = R[A]
    close(R(u[1:4], u[3:], R.input), R(u[3], R.input))
    close(R(u[:2], u[3:]), torch.zeros(3))
    close(R(u[1:4], u), chain.sum(1) * torch.tensor([0, 1, 1, 1, 0]))


def test_two_variables_of_one_layer_are_a_cross_table(chain: Chain, pictures: Pictures) -> None:
    close(chain.R(chain.R[A], chain.R[A]), torch.diag_embed(chain.sum(1)))
    R, p, full = pictures.R, pictures.a, pictures.full
    close(R(p.channels, p.positions), full)
    close(R(p.positions, p.channels), full.permute(0, 2, 3, 1))
    close(R(p.channels, p.axis(2)), full.sum(2))
    labels = torch.arange(16).view(4, 4) % 3
    table = R(p.groups(labels), R["4"].channels, p.channels)
    close(table.sum(2), torch.stack([full[:, :, labels == g].sum(2) for g in range(3)], 1))
    close(table.sum((1, 3)), R(R["4"].channels))


def test_conditionals(chain: Chain) -> None:
    R = chain.R
    x, u, v, y = R.input, R[A], R[B], R.output
    close(R(u, given=v.channel(1)), chain.walks[:, :, :, 1].sum((1, 3)) / chain.sum(2)[:, None, 1])
    close(R(u, given=v), chain.sum(1, 2) / chain.sum(2)[:, None])
    close(R(v, given=u), (chain.sum(1, 2) / chain.sum(1)[:, :, None]).transpose(1, 2))
    close(R(x, given=[v.channel(0), u]), chain.walks[:, :, :, 0].sum(3) / chain.walks[:, :, :, 0].sum((1, 3))[:, None])
    close(R(x[1:3], given=(v, u[2])), chain.walks[:, 1:3, 2].sum((1, 3)) / chain.walks[:, :, 2].sum((1, 3)))
    close(R(x, given=y[1]), chain.sum(0))
    close(R(u, given=()), R(u))


def test_a_condition_of_relevance_zero_gives_zero() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False)).double()
    model[0].weight.data.copy_(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
    model[2].weight.data.fill_(1.0)
    R = nrm.measure(model, torch.ones(1, 2).double(), rules="lrp-0")
    close(R(R.input, given=R["1"]), [[[0.5, 0.0], [0.5, 0.0]]])


# ---- the table of the paper's appendix, one line each ----------------------------------------------------------------

TABLE: dict[str, Callable[[Chain, nrm.Measure, nrm.Layer, nrm.Layer, nrm.Layer, nrm.Layer], tuple[Any, Any]]] = {
    "walk": lambda c, R, x, u, v, y: (R(x[2], u[1], v[0], y[1]), c.walks[:, 2, 1, 0, 1]),
    "partial walk": lambda c, R, x, u, v, y: (R(x[2], v[0]), c.walks[:, 2, :, 0].sum((1, 2))),
    "single neuron": lambda c, R, x, u, v, y: (R(u[1]), c.sum(1)[:, 1]),
    "two neurons": lambda c, R, x, u, v, y: (R(u[1], v[2]), c.sum(1, 2)[:, 1, 2]),
    "neuron sets": lambda c, R, x, u, v, y: (R(x[:2], u[1:], v[[0, 2]]), c.walks[:, :2, 1:, ::2].sum((1, 2, 3, 4))),
    "substructure": lambda c, R, x, u, v, y: (R(u[1:3], v[:2]), c.sum(1, 2)[:, 1:3, :2].sum((1, 2))),
    "conditional": lambda c, R, x, u, v, y: (R(u[1], given=v[0]), c.sum(1, 2)[:, 1, 0] / c.sum(2)[:, 0]),
    "normalization": lambda c, R, x, u, v, y: (R(u.all), torch.ones(3)),
    "empty set": lambda c, R, x, u, v, y: (R(~u.all), torch.zeros(3)),
    "additivity": lambda c, R, x, u, v, y: (R(u[:2] | u[3:]), R(u[:2]) + R(u[3:])),
    "complementary law": lambda c, R, x, u, v, y: (R(u[1:3]), 1 - R(~u[1:3])),
    "multiplication law": lambda c, R, x, u, v, y: (R(u[1], v[0]), R(u[1], given=v[0]) * R(v[0])),
    "addition law": lambda c, R, x, u, v, y: (R(u[:3] | u[1:4]), R(u[:3]) + R(u[1:4]) - R(u[:3] & u[1:4])),
    "marginalization": lambda c, R, x, u, v, y: (R(u), R(u, v).sum(2)),
    "chain rule": lambda c, R, x, u, v, y: (R(x[2], u[1], v[0]), R(x[2], given=u[1]) * R(u[1], given=v[0]) * R(v[0])),
    "Bayes": lambda c, R, x, u, v, y: (R(u[1], given=v[0]), R(v[0], given=u[1]) * R(u[1]) / R(v[0])),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_every_definition_and_law_is_one_line(name: str, chain: Chain) -> None:
    R = chain.R
    left, right = TABLE[name](chain, R, R.input, R[A], R[B], R.output)
    close(left, right)


# ---- sets ------------------------------------------------------------------------------------------------------------

SETS: dict[str, Callable[[nrm.Layer], tuple[nrm.Set, Any]]] = {
    "index": lambda p: (p[1], np.s_[1]),
    "negative index": lambda p: (p[-1, :, -2], np.s_[-1, :, -2]),
    "slices": lambda p: (p[:, 1:3, ::2], np.s_[:, 1:3, ::2]),
    "ellipsis": lambda p: (p[..., 0], np.s_[..., 0]),
    "list": lambda p: (p[[0, -1]], np.s_[[0, -1]]),
    "paired lists": lambda p: (p[[0, 1], [2, 3]], np.s_[[0, 1], [2, 3]]),
    "numpy and tensor": lambda p: (p[np.array([0, 2]), torch.tensor(1)], np.s_[[0, 2], 1]),
    "mask as index": lambda p: (p[:, torch.eye(4) > 0], np.s_[:, np.eye(4) > 0]),
    "channel": lambda p: (p.channel(2), np.s_[2]),
    "last channel": lambda p: (p.channel(-1), np.s_[-1]),
    "channels": lambda p: (p.channel([0, 3]), np.s_[[0, 3]]),
    "channels by mask": lambda p: (p.channel(torch.tensor([True, False, False, True])), np.s_[[0, 3]]),
    "no channel": lambda p: (p.channel([]), np.s_[[]]),
    "position": lambda p: (p.position((1, 2)), np.s_[:, 1, 2]),
    "last position": lambda p: (p.position((-1, -1)), np.s_[:, -1, -1]),
    "flat position": lambda p: (p.position(6), np.s_[:, 1, 2]),
    "positions": lambda p: (p.position([(0, 1), (3, 2)]), np.s_[:, [0, 3], [1, 2]]),
    "flat positions": lambda p: (p.position([1, 14]), np.s_[:, [0, 3], [1, 2]]),
    "group": lambda p: (p.group(torch.arange(16).view(4, 4) // 8, 1), np.s_[:, 2:]),
    "groups": lambda p: (p.group(torch.arange(4).view(4, 1, 1), [1, 3]), np.s_[[1, 3]]),
    "where": lambda p: (p.where(torch.arange(4) < 2), np.s_[:, :, :2]),
    "where, two axes": lambda p: (p.where(np.tri(4) > 0), np.s_[:, np.tri(4) > 0]),
    "where, channels": lambda p: (p.where((torch.arange(4) == 1).view(4, 1, 1)), np.s_[1]),
    "where, zeros and ones": lambda p: (p.where(torch.tensor([0, 1, 1, 0])), np.s_[:, :, 1:3]),
    "all": lambda p: (p.all, np.s_[:]),
    "block": lambda p: (p.channels[1], np.s_[1]),
    "block at": lambda p: (p.positions[1, -1], np.s_[:, 1, -1]),
    "block of chosen": lambda p: (p.channels[1:][0], np.s_[1]),
    "overridden channels": lambda p: (p.with_channels(-1).channel(1), np.s_[:, :, 1]),
}


@pytest.mark.parametrize("name", SETS)
def test_sets(name: str, pictures: Pictures) -> None:
    event, index = SETS[name](pictures.a)
    mask = np.zeros((4, 4, 4), dtype=bool)
    mask[index] = True
    wanted = (pictures.full * torch.from_numpy(mask)).sum((1, 2, 3))
    close(pictures.R(event), wanted)
    close(pictures.R(~event), pictures.full.sum((1, 2, 3)) - wanted)


def test_one_set_per_sample(pictures: Pictures) -> None:
    R, p, full = pictures.R, pictures.a, pictures.full
    close(R(p.channel([[0, 2], [1]])), torch.stack([full[0, [0, 2]].sum(), full[1, 1].sum()]))
    close(R(p.channel(torch.tensor([[3], [0]]))), torch.stack([full[0, 3].sum(), full[1, 0].sum()]))
    close(R(p.channels[[[3], [0]]]), torch.stack([full[0, 3].sum(), full[1, 0].sum()]))
    close(
        R(p.position([[(0, 1)], [(2, 2), 0]])), torch.stack([full[0, :, 0, 1].sum(), full[1, :, [2, 0], [2, 0]].sum()])
    )
    mask = torch.rand(2, 4, 4, 4) > 0.5
    close(R(p.where(mask)), (full * mask).sum((1, 2, 3)))
    close(R(p.where(mask[:, :1, :1])), (full * mask[:, :1, :1]).sum((1, 2, 3)))
    labels = torch.randint(-1, 3, (2, 4, 4, 4))
    close(R(p.group(labels, [[0], [1, 2]])), torch.stack([full[0][labels[0] == 0].sum(), full[1][labels[1] > 0].sum()]))


ALGEBRA = {"&": operator.and_, "|": operator.or_, "^": operator.xor, "-": lambda m, n: m & ~n}


@pytest.mark.parametrize("symbol", ALGEBRA)
def test_set_algebra(symbol: str, pictures: Pictures) -> None:
    R, p, full = pictures.R, pictures.a, pictures.full
    one, two = torch.zeros(4, 4, 4, dtype=torch.bool), torch.zeros(4, 4, 4, dtype=torch.bool)
    one[:, 1:3], two[2] = True, True
    combine = operator.sub if symbol == "-" else ALGEBRA[symbol]
    close(R(combine(p[:, 1:3], p.channel(2))), (full * ALGEBRA[symbol](one, two)).sum((1, 2, 3)))
    close(R(combine(p[:, 1:3], p.with_channels(1).channel(1))), R(combine(p[:, 1:3], p[:, 1])))
    both = combine(~p[:, 1:3], p.channel(2)) | p[0, 0, 0]
    corner = torch.zeros_like(one)
    corner[0, 0, 0] = True
    close(R(both), (full * (ALGEBRA[symbol](~one, two) | corner)).sum((1, 2, 3)))


def test_sets_of_different_layers_do_not_combine(pictures: Pictures) -> None:
    with pytest.raises(nrm.QuestionError, match=r"different layers[\s\S]*'2'[\s\S]*'4'[\s\S]*pass both"):
        pictures.a.channel(0) & pictures.R["4"].channel(0)
    with pytest.raises(nrm.QuestionError, match=r"combines with sets only"):
        pictures.a.channel(0) & pictures.a.channels  # type: ignore[operator]
    for wrong in (lambda: pictures.a & pictures.a.all, lambda: pictures.a.all & pictures.a, lambda: ~pictures.a):
        with pytest.raises(nrm.QuestionError, match=r"not a set|sets only"):
            wrong()


# ---- partitions ------------------------------------------------------------------------------------------------------

PARTITIONS: dict[str, Callable[[nrm.Layer, Tensor], tuple[Any, Tensor]]] = {
    "neurons": lambda p, m: (p, m),
    "channels": lambda p, m: (p.channels, m.sum((2, 3))),
    "positions": lambda p, m: (p.positions, m.sum(1)),
    "axis": lambda p, m: (p.axis(1), m.sum((1, 3))),
    "last axis": lambda p, m: (p.axis(-1), m.sum((1, 2))),
    "axes": lambda p, m: (p.axis(2, 0), m.sum(2).transpose(1, 2)),
    "chosen": lambda p, m: (p.channels[[3, 0, 3]], m.sum((2, 3))[:, [3, 0, 3]]),
    "chosen from the end": lambda p, m: (p.channels[[-1]], m.sum((2, 3))[:, [-1]]),
    "chosen by slice": lambda p, m: (p.channels[1:3], m.sum((2, 3))[:, 1:3]),
    "chosen backwards": lambda p, m: (p.channels[::-1], m.sum((2, 3)).flip(1)),
    "chosen by mask": lambda p, m: (p.channels[torch.tensor([0, 1, 1, 0]) > 0], m.sum((2, 3))[:, 1:3]),
    "chosen twice": lambda p, m: (p.channels[1:][[0, 2]], m.sum((2, 3))[:, [1, 3]]),
    "chosen by range": lambda p, m: (p.channels[range(2)], m.sum((2, 3))[:, :2]),
    "rows": lambda p, m: (p.positions[1:3], m.sum(1)[:, 1:3]),
    "window": lambda p, m: (p.positions[1:3, 2:], m.sum(1)[:, 1:3, 2:]),
    "line": lambda p, m: (p.positions[1, 1:], m.sum(1)[:, 1, 1:]),
    "last column": lambda p, m: (p.positions[..., -1], m.sum(1)[..., -1]),
    "grid": lambda p, m: (p.positions[[0, 3], [1, 2]], m.sum(1)[:, [0, 3]][:, :, [1, 2]]),
    "some positions": lambda p, m: (p.positions[[(0, 1), (3, 2)]], m.sum(1)[:, [0, 3], [1, 2]]),
    "some flat positions": lambda p, m: (p.positions[[1, 14]], m.sum(1)[:, [0, 3], [1, 2]]),
    "shared labels": lambda p, m: (
        p.groups(torch.arange(16).view(4, 4) // 4 - 1), m.sum((1, 3))[:, 1:]),
    "labels of channels": lambda p, m: (
        p.groups(torch.tensor([1, 0, -1, 1]).view(4, 1, 1)),
        torch.stack([m.sum((2, 3))[:, 1], m.sum((2, 3))[:, [0, 3]].sum(1)], 1)),
    "labels per sample": lambda p, m: (
        p.groups(torch.stack([torch.zeros(4, 4, 4), torch.ones(4, 4, 4)]).long()),
        torch.diag(m.sum((1, 2, 3)))),
    "chosen groups": lambda p, m: (p.groups(torch.arange(4))[[2, 0]], m.sum((1, 2))[:, [2, 0]]),
    "overridden channels": lambda p, m: (p.with_channels(2).positions, m.sum(3)),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTITIONS)
def test_partitions(name: str, pictures: Pictures) -> None:
    R, p = pictures.R, pictures.a
    variable, wanted = PARTITIONS[name](p, pictures.full)
    close(R(variable), wanted)
    joint, _ = PARTITIONS[name](p, pictures.full)
    with_event = PARTITIONS[name](p, R(p, R["4"].channel(1)))[1]
    close(R(joint, R["4"].channel(1)), with_event)
    table = R(R["4"].channels, joint)
    assert table.shape == (2, 3, *wanted.shape[1:])
    close(table[:, 1], with_event)
    close(R(R.input.channels, joint).sum(1), wanted)


def test_a_heat_map_of_an_interaction_sums_to_it(pictures: Pictures) -> None:
    R = pictures.R
    u, v = R["1"], R["4"]
    assert R(R.input, u.channel(1), v.channel(2)).shape == (2, 2, 8, 8)
    assert R(R.input.positions, u.channel(1)).shape == (2, 8, 8)
    close(R(R.input, u.channel(1), v.channel(2)).sum((1, 2, 3)), R(u.channel(1), v.channel(2)))
    close(R(u.channels, v.channels)[:, 1, 2], R(u.channel(1), v.channel(2)))


# ---- names -----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.b(self.act(self.a(x))))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(4, 5), Block(5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(torch.tanh(self.stem(x))))


@pytest.fixture(scope="module")
def residual() -> nrm.Measure:
    torch.manual_seed(0)
    return nrm.measure(Residual().double(), torch.rand(2, 4).double(), rules="lrp-0", target=0)


def test_names(residual: nrm.Measure) -> None:
    R = residual
    names = [row.name for row in R.layers]
    assert names == ["input", "stem", "/tanh", "block.a", "block.act", "block.b", "block/add", "block", "head"]
    close(R(R["block"].input), R(R["/tanh"]))
    close(R(R["block.b"].input), R(R["block.act"]))
    close(R(R["head"]), R(R.output))
    assert [str(layer) for layer in R.find("block.*")] == ["block.a", "block.act", "block.b"]
    assert [str(layer) for layer in R.find("*")] == names
    assert R.layers[2].name == "/tanh"
    assert (R.layers[2].shape, R.layers[2].channel, R.layers[2].kind) == ((5,), 0, "activation")


def test_a_module_called_several_times() -> None:
    cell = nn.Linear(3, 3)
    R = nrm.measure(nn.Sequential(cell, nn.Tanh(), cell, nn.Tanh(), cell).double(), torch.rand(1, 3).double())
    assert {"0#0", "0#1", "0#2"} <= {row.name for row in R.layers}
    assert [str(layer) for layer in R.find("0")] == ["0#0", "0#1", "0#2"]
    close(R(R["0#1"].input), R(R["1"]))
    assert R(R["0#0"], R["0#2"].channel(0)).shape == (1, 3)


def test_edges_and_skips(residual: nrm.Measure) -> None:
    R = residual
    skip, branch = R["block"].skip, R["block.b"]
    edge = R.edge("/tanh", "block/add")
    close(R(skip), R(edge))
    close(R(edge), R(R.edge(R["/tanh"], R["block/add"])))
    other = R.edge("/tanh", "block.a")
    close(R(R["/tanh"]), R(edge) + R(other))
    close(R(skip, branch.all), torch.zeros(2, 5))
    close(R(R.input, skip.channel(2)).sum(1) + R(R["stem.bias"], skip.channel(2)).sum(1), R(skip.channel(2)))
    close(R(skip[1:3] & ~skip.channel(1)), R(skip)[:, 2])
    close(R(edge.channels, R["block"].channel(2)), R(edge, R["block"][2]))
    close(R(skip.all) + R(branch.all) + R(R["block/add.bias"].all), R(R["block/add"].all))
    assert R.values(edge).shape == (2, 5)


class Bare(nn.Module):
    """A block whose input comes straight from a linear step, and whose branch ends in an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.a(x))


def test_the_skip_is_what_the_block_receives() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), Bare(), Bare(), nn.Linear(5, 3)).double()
    R = nrm.measure(model, torch.rand(2, 4).double(), target=0, rules="lrp-0")
    close(R(R["1"].skip), R(R.edge("0", "1")))
    close(R(R["2"].skip), R(R.edge("1", "2")))
    close(R(R["1"].skip.all) + R(R["1/relu"].all), R(R["1"].all) - R(R["1.bias"].all))


def test_cuts_have_mass_one(residual: nrm.Measure) -> None:
    R = residual
    for row in R.layers:
        cut = R.cut(row.name)
        assert len(cut) == len(list(cut))
        close(torch.stack([R(part.all) for part in cut]).sum(0), torch.ones(2))
        assert row.is_cut == (len(cut) == 1)
        close(R(nrm.layer(row.name).all), row.mass)
    assert "/tanh -> block/add" in [str(part) for part in R.cut(R["block.a"])]
    close(torch.stack([R(part.all) for part in R.inputs]).sum(0), torch.ones(2))
    assert str(next(iter(R.inputs))) == "input"


def test_biases(residual: nrm.Measure) -> None:
    R = residual
    assert [str(layer) for layer in R.biases] == ["stem.bias", "block.a.bias", "block/add.bias", "head.bias"]
    mass = sum(R(layer).sum(1) for layer in R.biases)
    close(R(R.input).sum(1), 1 - mass)
    stem = R(R["stem.bias"], R["/tanh"].channels)
    weight = torch.einsum("si,ji->sj", R.values(R.input), R.inner.network.tape.find("stem").op.map.weight)
    bias = R.values(R["stem"]) - weight
    close(stem, torch.diag_embed(R(R["stem"]) * bias / R.values(R["stem"])))
    ignored = nrm.measure(Residual(), torch.rand(1, 4), bias="ignore", rules=nrm.WSquare())
    assert ignored.biases == []


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3, bias=False), nn.Linear(2, 3, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"sum": self.left(x) + self.right(y), "left": self.left(x)}


def test_several_inputs_and_outputs() -> None:
    torch.manual_seed(0)
    model, x, y = Two().double(), torch.rand(2, 4).double(), torch.rand(2, 2).double()
    R = nrm.measure(model, (x, y), output="sum", target=0)
    products = x * model.left.weight[0], y * model.right.weight[0]
    total = products[0].sum(1) + products[1].sum(1)
    close(R(R["input[0]"]), products[0] / total[:, None])
    close(R(R["input[1]"]), products[1] / total[:, None])
    S = nrm.measure(model, {"y": y, "x": x}, output="sum", target=0)
    close(S(S["input.x"]), R(R["input[0]"]))
    close(S(S["input.y"]), R(R["input[1]"]))
    with pytest.raises(nrm.QuestionError, match=r"2 inputs[\s\S]*'input\[0\]', 'input\[1\]'"):
        R.input
    D = nrm.measure(model, (x, y), output=lambda o: o["sum"][:, 0] - o["left"][:, 1])
    value = (products[0].sum(1) + products[1].sum(1)) - x @ model.left.weight[1]
    close(D.value, value)
    close(D(D["input[1]"]), products[1] / value[:, None])


# ---- targets and facts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "index"),
    [
        (1, [1, 1, 1]),
        (np.int64(0), [0, 0, 0]),
        (torch.tensor(1), [1, 1, 1]),
        ([1, 0, 1], [1, 0, 1]),
        (torch.tensor([1, 0, 1]), [1, 0, 1]),
        ((1,), [1, 1, 1]),
        (([1, 0, 1],), [1, 0, 1]),
    ],
    ids=str,
)
def test_targets(target: Any, index: list[int], chain: Chain) -> None:
    R = nrm.measure(chain.model, chain.x, target=target)
    outputs = chain.model(chain.x)
    assert R.target.tolist() == index  # type: ignore[union-attr]
    close(R.value, outputs.gather(1, torch.tensor(index)[:, None])[:, 0].detach())
    close(R(R.output), F.one_hot(torch.tensor(index), 2))


def test_the_top_class_is_the_default(chain: Chain) -> None:
    R = nrm.measure(chain.model, chain.x)
    outputs = chain.model(chain.x).detach()
    assert R.prediction.tolist() == outputs.argmax(1).tolist() == R.target.tolist()  # type: ignore[union-attr]
    close(R.value, outputs.amax(1))
    assert len(R) == 3


def test_spread_targets(chain: Chain) -> None:
    outputs = chain.model(chain.x).detach()
    for name, weights in (("logits", outputs / outputs.sum(1, keepdim=True)), ("softmax", outputs.softmax(1))):
        R = nrm.measure(chain.model, chain.x, target=name)
        assert R.target == name
        close(R(R.output), weights)
        one = nrm.measure(chain.model, chain.x, target=1)
        close(R(R.input, given=R.output[1]), one(one.input))
        close(R(R.input, given=R.output)[..., 1], one(one.input))
        close(R(R.input, R.output).sum(2), R(R.input))
    assert nrm.measure(chain.model, chain.x, target="logits").value.tolist() == outputs.sum(1).tolist()


def test_a_set_of_outputs_is_a_target() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 5).double(), torch.rand(2, 4).double()
    model.bias.data.fill_(2.0)
    outputs = model(x).detach()
    R = nrm.measure(model, x, target=nrm.output[1:3])
    assert R.target == "output[1:3]"
    close(R(R.output), F.pad(outputs[:, 1:3] / outputs[:, 1:3].sum(1, keepdim=True), (1, 2)))
    close(R.value, outputs[:, 1:3].sum(1))
    per_sample = nrm.measure(model, x, target=nrm.output.channel([[0], [3, 4]]))
    close(per_sample(per_sample.output)[0], [1, 0, 0, 0, 0])
    close(nrm.measure(model, x, target=nrm.output.all).value, outputs.sum(1))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(10, 4), nn.Linear(4, 10)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embed(words)))


def test_targets_of_outputs_with_positions() -> None:
    torch.manual_seed(0)
    model, words = Words(), torch.randint(0, 10, (2, 5))
    outputs = model(words).detach()
    R = nrm.measure(model, words, target=(-1, 3), labels={"output": [f"word {i}" for i in range(10)]})
    assert R.target.tolist() == [[4, 3], [4, 3]]  # type: ignore[union-attr]
    torch.testing.assert_close(R.value, outputs[:, 4, 3])
    assert R.prediction.tolist() == [[4, i] for i in outputs[:, -1].argmax(1).tolist()]
    torch.testing.assert_close(nrm.measure(model, words).target, R.prediction)
    assert "output (4, 3) 'word 3'" in repr(R)
    per_sample = nrm.measure(model, words, target=([0, -1], [2, 3]))
    assert per_sample.target.tolist() == [[0, 2], [4, 3]]  # type: ignore[union-attr]
    assert R(R.input).shape == (2, 5, 4)
    assert R(R.input.positions).shape == (2, 5)
    assert torch.count_nonzero(R(R.input.positions)[:, :4]) == 0


@pytest.mark.parametrize(
    "ask",
    [
        lambda R: R(R.output[0]),
        lambda R: R(R.input, R.output.channel(0)),
        lambda R: R(R.input, R["4"][0]),
        lambda R: R(R.input, given=R.output[0]),
        lambda R: R(R.input, given=R.output),
    ],
)
def test_an_excluded_output_is_an_error(ask: Callable[[nrm.Measure], Tensor], chain: Chain) -> None:
    with pytest.raises(nrm.QuestionError, match=r"target excludes[\s\S]*sample 0[\s\S]*output 1[\s\S]*softmax"):
        ask(chain.R)


def test_an_output_excluded_in_one_sample_is_an_error_there(chain: Chain) -> None:
    R = nrm.measure(chain.model, chain.x, target=[0, 1, 0])
    with pytest.raises(nrm.QuestionError, match="sample 1"):
        R(R.input, R.output[0])
    close(R(R.input, R.output.channel([[0], [1], [0]])), R(R.input))
    close(R.sample(2)(R.input, R.output[0]), R(R.input)[2:])


def test_facts(chain: Chain) -> None:
    R = chain.R
    close(R.values(R.input), chain.x)
    close(R.values(R[A]), (chain.x @ chain.model[0].weight.T).detach())
    close(R.values(R.output), chain.model(chain.x).detach())
    R.values(R[A]).zero_()
    close(R.values(R[A]), (chain.x @ chain.model[0].weight.T).detach())
    R.value.zero_()
    assert R.value.min() > 0


def test_one_sample_of_a_batch(pictures: Pictures) -> None:
    R = pictures.R
    S = R.sample(1)
    u, v = S["2"], S["4"]
    assert isinstance(S, nrm.Measure)
    assert len(S) == 1
    for question in ((u,), (u.channels, v.channels), (S.input, u.channel(1), v.channel(2)), (u.channel(1),)):
        close(S(*question), R(*question)[1:])
    close(S(u.channels, given=v.channel(0)), R(u.channels, given=v.channel(0))[1:])
    close(S.values(u), R.values(u)[1:])
    assert S.target.tolist() == [2]  # type: ignore[union-attr]
    assert S.prediction.shape == S.value.shape == (1,)
    assert [row.mass for row in S.layers] == [row.mass[1:] for row in R.layers]
    assert len(S.check().ok) == 1
    assert S.describe()["batch"] == 1
    assert S.sample(0)(u.channels).shape == (1, 4)
    close(R.sample(-1)(u), S(u))
    assert S.inputs == R.inputs
    assert S.find("*") == R.find("*")


def test_samples_lie_where_batch_dim_says() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), torch.rand(5, 2, 3).double()
    R = nrm.measure(model, x, batch_dim=1, target=(-1, 1))
    assert len(R) == 2
    S = nrm.measure(model, x.transpose(0, 1), target=(-1, 1))
    close(R(R.input), S(S.input))
    close(R(R["1"].channels, R.input.positions), S(S["1"].channels, S.input.positions))
    whole = nrm.measure(model, x, batch_dim=None, target=(4, 0, 1))
    assert len(whole) == 1
    close(whole(whole.input)[0, :, 0], S(S.input)[0])


def test_results_are_plain_tensors_in_the_precision_of_the_model(chain: Chain) -> None:
    for answer in (chain.R(chain.R[A]), chain.R(chain.R[A], given=chain.R[B]), chain.R.values(chain.R[A])):
        assert type(answer) is Tensor
        assert answer.dtype == torch.float64
        assert not answer.requires_grad

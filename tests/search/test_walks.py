"""The best walks beside the list of all walks: the same relevances, in the same order, of walks that exist."""

from __future__ import annotations

import itertools
import math
import sys
import types
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor, nn

import nrm
from laws.agreement import Both, drawn, law_of_each, law_of_some
from networks import KINDS
from nrm.search import Walk, walks as search
from oracles.twin import RULES, Rules
from real import models

quiet = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")
SIGNS = ("+", "-", "abs")
ALL = 10**6


def wanted(relevances: Iterable[float], sign: str) -> list[float]:
    """The relevances that a search for a sign should give, all of them."""
    found = [r for r in relevances if r != 0 and (sign == "abs" or (r > 0) == (sign == "+"))]
    return sorted(found, key=abs, reverse=True)


def spelled_out(found: tuple[Walk, ...]) -> list[float]:
    """Every walk of a list by itself."""
    return [walk.relevance for walk in found for _ in range(walk.multiplicity)]


def agree(found: tuple[Walk, ...], truth: list[float], k: int, scale: float = 1.0, rtol: float = 1e-9) -> None:
    """The list is the beginning of the truth: k distinct values of it, or as many as there are."""
    floor = 1e-13 * scale  # below it, brute force and search may disagree about what is 0
    mine, theirs = [np.array([r for r in values if abs(r) > floor]) for values in (spelled_out(found), truth)]
    np.testing.assert_allclose(np.abs(mine), np.abs(theirs[: len(mine)]), rtol=rtol, atol=1e-12 * scale)
    assert [w.relevance for w in found] == sorted((w.relevance for w in found), key=abs, reverse=True)
    if not any(w.capped for w in found):
        assert len(mine) == len(theirs) or len(found) >= k


# ---- against the enumeration of walks --------------------------------------------------------------------------------


def merged(it: Both, sample: int) -> dict[tuple[tuple[str, int], ...], float]:
    """The oracle's walks. Those that are the same list of neurons, by two terms of one sum, are one walk."""
    total: dict[tuple[tuple[str, int], ...], float] = {}
    for walk, relevance in it.walks[sample]:
        total[walk] = total.get(walk, 0.0) + relevance
    return total


def exists(it: Both, walk: Walk, among: dict[tuple[tuple[str, int], ...], float]) -> bool:
    """Whether a found walk is one of the oracle's, of the same relevance: all its steps lie on it."""
    places = []
    for step in walk.steps:
        name = it.twins[0].net.output if step.layer.name == "output" else step.layer.name
        shape = it.twins[0].shapes.get(name, step.index and (math.inf,) * len(step.index))
        flat = step.index[-1] if math.inf in shape else int(np.ravel_multi_index(step.index, shape)) if shape else 0
        places.append((name, flat, step.layer.consumer))
    if ".sink" in places[-1][0]:  # one neuron per column, in the shape of the step
        base, _, call = places[-1][0].partition(".sink")
        places[-1] = (
            places[-1][0],
            int(np.ravel_multi_index(walk.steps[-1].index, it.twins[0].shapes[base + call])),
            None,
        )
    for truth, relevance in among.items():
        after = {a: b for (a, _), (b, _) in itertools.pairwise(truth)}
        names = {name for name, _ in truth}
        on = all(
            (
                (name, i) in truth or (it.case.kind == "folded" and ".bias" in name and name in names)
            )  # of other channels
            and (to is None or after.get(name) == to)
            for name, i, to in places
        )
        if on and truth[0][0] == places[-1][0] and math.isclose(relevance, walk.relevance, rel_tol=1e-7, abs_tol=1e-12):
            return True
    return False


@quiet
@pytest.mark.parametrize("kind", KINDS)
@law_of_each
@given(data=st.data())
def test_any_network(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind, batch=2)
    k, sign = data.draw(st.sampled_from([3, 1, 10, ALL])), data.draw(st.sampled_from(SIGNS))
    found = it.R.walks(k, sign, to_input=True)
    assert len(found) == 2
    for sample in range(2):
        among = merged(it, sample)
        agree(found[sample], wanted(among.values(), sign), k, it.scale)
        for walk in found[sample][:5]:
            assert walk.sample == sample
            assert exists(it, walk, among), walk
            if walk.multiplicity == 1 and ".sink" not in walk.steps[-1].layer.name:
                it.close(it.R(*walk)[0], walk.relevance)


@quiet
@pytest.mark.parametrize("rule", sorted(RULES))
@law_of_some
@given(data=st.data(), kind=st.sampled_from(["chain", "normed stream", "conv2d", "late input"]))
def test_rules_of_layers(rule: str, kind: str, data: st.DataObject) -> None:
    """Every rule, with biases as inputs and columns without mass that are spread or sunk."""
    it = drawn(data, kind, rules=st.just(Rules(rule)), biases=True)
    for sign in SIGNS:
        truth = wanted(merged(it, 0).values(), sign)
        agree(it.R.walks(4, sign, to_input=True)[0], truth, 4, it.scale)


# ---- against the table of all walks of a chain -----------------------------------------------------------------------


class Apply(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Mixed(nn.Module):
    """x times a constant on either side, one matrix for all or one for each sample."""

    def __init__(self, constant: Tensor, left: bool) -> None:
        super().__init__()
        self.register_buffer("constant", constant)
        self.left = left

    def forward(self, x: Tensor) -> Tensor:
        return self.constant @ x if self.left else x @ self.constant


def constant(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


STEPS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "linear with positions": (lambda: nn.Linear(4, 3), (2, 4)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 2, stride=2, padding=1), (2, 6)),
    "grouped conv": (lambda: nn.Conv1d(4, 6, 3, groups=2, dilation=2, padding=1), (4, 5)),
    "depthwise conv": (lambda: nn.Conv2d(3, 3, 2, groups=3), (3, 3, 3)),
    "conv2d": (lambda: nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(1, 0)), (2, 3, 4)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2, padding=(1, 0, 1)), (1, 2, 2, 2)),
    "conv with uneven padding": (lambda: nn.Conv1d(2, 2, 2, padding="same"), (2, 4)),
    "transposed conv": (
        lambda: nn.ConvTranspose2d(4, 2, (2, 3), 2, padding=(0, 1), output_padding=1, groups=2),
        (4, 2, 2),
    ),
    "dilated transposed conv": (lambda: nn.ConvTranspose1d(2, 3, 2, stride=2, dilation=3), (2, 3)),
    "average pool": (lambda: nn.AvgPool2d(2, stride=1), (2, 3, 3)),
    "adaptive pool": (lambda: nn.AdaptiveAvgPool1d(2), (2, 5)),
    "mean": (lambda: Apply(lambda x: x.mean((1, 3))), (2, 3, 2)),
    "upsampling": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (2, 2, 2)),
    "layer norm": (lambda: nn.LayerNorm(4), (2, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3)),
    "right product": (lambda: Mixed(constant(3, 4), left=False), (2, 3)),
    "left product": (lambda: Mixed(constant(4, 3), left=True), (3, 2)),
    "a product per sample": (lambda: Mixed(constant(2, 4, 3), left=True), (3, 2)),
    "heads": (lambda: Mixed(constant(2, 2, 3, 4), left=False), (2, 2, 3)),
    "cumulative sum": (lambda: Apply(lambda x: x.cumsum(1)), (5,)),
    "square": (lambda: Apply(lambda x: x * x), (5,)),
    "outer product": (lambda: Apply(lambda x: x[:, :, None] * x[:, None]), (3,)),
    "max pool": (lambda: nn.MaxPool2d(2, stride=1), (2, 3, 3)),
    "permutation": (lambda: Apply(lambda x: x.transpose(1, 2).flip(1)[:, 1:]), (3, 2)),
    "repetition": (lambda: Apply(lambda x: x[:, None].expand(-1, 3, -1)), (3,)),
    "offset": (nn.Sigmoid, (5,)),
    "stack": (lambda: Apply(lambda x: torch.stack([x, 2 * x, x.tanh()], 2)), (3,)),
    "padding": (lambda: Apply(lambda x: F.pad(x, (1, 2), value=0.5)), (3,)),
}


def chain(name: str) -> tuple[nn.Module, Tensor]:
    """A linear step, the step, and a linear step: all walks pass these three."""
    torch.manual_seed(1)
    build, shape = STEPS[name]
    x = torch.randn(2, 2)
    step = build()
    low = nn.Sequential(nn.Linear(2, math.prod(shape)), nn.Unflatten(1, shape))
    with torch.no_grad():
        wide = step(low(x)).flatten(1).shape[1]
    model = nn.Sequential(low, step, nn.Flatten(), nn.Linear(wide, 2)).eval()
    for bias in (p for path, p in model.named_parameters() if path.endswith("bias")):
        bias.data.abs_()  # positive rules have a share in every column
    return model, x


@quiet
@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("rules", ["lrp-0", "epsilon-gamma-box", "epsilon-plus-flat", "epsilon-alpha2-beta1"])
@pytest.mark.parametrize("name", STEPS)
def test_any_step(name: str, rules: str) -> None:
    """All walks of a chain add up to 1, the best of them come first, and messages agree about each."""
    model, x = chain(name)
    R = nrm.measure(model.double(), x.double(), target=0, rules=rules, zero="uniform", bias="input")
    every = R.walks(ALL, "abs", to_input=True)
    for whole in every:
        assert not any(w.capped for w in whole)
        assert sum(spelled_out(whole)) == pytest.approx(1)
        for walk in (*whole[:3], *whole[-3:]):
            if walk.multiplicity == 1:
                assert float(R(*walk)) == pytest.approx(walk.relevance, rel=1e-7, abs=1e-12)
    for sign in SIGNS:
        for whole, some in zip(every, R.walks(4, sign, to_input=True), strict=True):
            agree(some, wanted(spelled_out(whole), sign), 4)


# ---- what a list says ------------------------------------------------------------------------------------------------


def network(duplicates: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    if duplicates:
        with torch.no_grad():
            model[2].weight[2], model[2].bias[2] = model[2].weight[1], model[2].bias[1]
            model[4].weight[:, 2] = model[4].weight[:, 1]
    return model


def test_ties_are_one_walk() -> None:
    R = nrm.measure(network(duplicates=True), torch.tensor([[1.0, 2.0, -1.0]]), rules="lrp-0", target=1)
    every = R.walks(ALL, "abs")[0]
    twice = [w for w in every if w.multiplicity == 2]
    assert twice
    for walk in twice:
        assert walk.share == pytest.approx(2 * walk.relevance)
        assert any("2[1]" in str(s) or "2[2]" in str(s) for s in walk.steps)
    assert sum(w.share for w in every) == pytest.approx(1, abs=1e-4)
    assert R.walks(len(every), "abs")[0] == every


def test_ties_are_counted_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "TIES", 20)
    model = nn.Sequential(nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False), nn.Linear(5, 1, bias=False))
    for p in model.parameters():
        nn.init.constant_(p, 0.5)
    R = nrm.measure(model, torch.ones(1, 5), rules="lrp-0")
    with pytest.warns(nrm.NrmWarning, match="20 walks have the same relevance"):
        (walk,) = R.walks(3)[0]
    assert walk.capped
    assert walk.multiplicity == 20
    assert "x 20 or more" in str(walk)
    monkeypatch.setattr(search, "TIES", 1000)
    (walk,) = R.walks(3)[0]
    assert (walk.multiplicity, walk.capped, walk.share) == (125, False, pytest.approx(1))


def test_walks_end_at_the_first_hidden_layer_under_flat() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    R = nrm.measure(model, torch.rand(1, 2, 5, 5), rules="epsilon-plus-flat")
    short, long = R.walks(3)[0], R.walks(3, to_input=True)[0]
    for a, b in zip(short, long, strict=True):
        assert a.steps[-1].layer == nrm.layer("0")
        assert b.steps[-1].layer == nrm.layer("input")
        assert (a.multiplicity, b.multiplicity) == (1, 18)
        assert b.relevance * 18 == pytest.approx(a.relevance)
        assert float(R(*a)) == pytest.approx(a.relevance)


def test_text_and_table(monkeypatch: pytest.MonkeyPatch) -> None:
    R = nrm.measure(network(), torch.rand(2, 3), rules="lrp-0", target=0)
    found = R.walks(2)
    text = str(found)
    assert text.startswith("walks of sample 0\n  1  ")
    assert "output[0] <- " in text
    assert repr(found) == text
    assert "<caption>walks of samples 0, 1" in found._repr_html_()
    records = found.records()
    assert [r["rank"] for r in records] == [1, 2, 1, 2]
    assert set(records[0]) == {"sample", "rank", "relevance", "share", "multiplicity", "walk"}
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="optional package"):
        found.to_pandas()
    frame = types.SimpleNamespace(from_records=list)
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=frame))
    assert found.to_pandas() == records


@pytest.mark.parametrize("bad", [{"k": 0}, {"k": -1}, {"k": 2.5}, {"k": True}, {"sign": "plus"}, {"to_input": "yes"}])
def test_bad_questions(bad: dict[str, object]) -> None:
    R = nrm.measure(network(), torch.rand(1, 3), rules="lrp-0")
    with pytest.raises(nrm.QuestionError, match="got:"):
        R.walks(**bad)


def test_too_little_memory() -> None:
    R = nrm.measure(nn.Sequential(nn.Linear(50, 500), nn.Linear(500, 1)), torch.rand(1, 50), memory=1000)
    with pytest.raises(nrm.MemoryLimitError, match="memory bound"):
        R.walks()


def test_the_same_again_and_sample_by_sample() -> None:
    x = torch.randn(3, 3)
    R = nrm.measure(network(), x, rules="lrp-0")
    found = R.walks(6, "abs")
    assert R.walks(6, "abs") == found
    for sample in range(3):
        alone = nrm.measure(network(), x[sample : sample + 1], rules="lrp-0").walks(6, "abs")
        np.testing.assert_allclose(spelled_out(found[sample]), spelled_out(alone[0]), rtol=1e-4)
        assert [w.steps for w in found[sample]] == [w.steps for w in alone[0]]
        assert R.sample(sample).walks(6, "abs")[0] == found[sample]


def test_a_spread_target() -> None:
    R = nrm.measure(network(), torch.rand(1, 3), rules="lrp-0", target="softmax")
    for walk in R.walks(5, "abs")[0]:
        assert float(R(*walk)) == pytest.approx(walk.relevance, rel=1e-4)


class Loop(nn.Module):
    """A recurrent cell, called again and again."""

    def __init__(self, times: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.read, self.head = nn.Linear(6, 6), nn.Linear(2, 6), nn.Linear(6, 1)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(len(x), 6)
        for t in range(self.times):
            h = torch.tanh(self.cell(h) + self.read(x[:, t].to(h)).to(self.cell.weight.dtype))
        return self.head(h)


@quiet
def test_products_of_very_many_entries() -> None:
    """A walk through a hundred steps is far smaller than float32 can hold, and is still found."""
    x = torch.randn(1, 100, 2)
    rule = {"*": nrm.ZPlus()}
    R = nrm.measure(Loop(100), x, rules=rule, bias="ignore", zero="uniform")
    exact = nrm.measure(Loop(100), x, rules=rule, bias="ignore", zero="uniform", dtype=torch.float64)
    found, truth = R.walks(5)[0], exact.walks(5)[0]
    assert [w.steps for w in found] == [w.steps for w in truth]
    np.testing.assert_allclose([w.relevance for w in found], [w.relevance for w in truth], rtol=1e-3)


# ---- a large network -------------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.slow
def test_vgg(shared: Callable[[str], Path]) -> None:
    data = shared("vgg16-imagenette").parent
    model = models.load("VGG16-Imagenette", data)
    image = models.photo(sorted((data / "imagenette" / "val").glob("*/*"))[3])[None]
    R = nrm.measure(model, image, rules="epsilon-plus-flat", memory="512 MiB")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = R.walks(5)[0]
    assert len(found) == 5
    relevances = [w.relevance for w in found]
    assert relevances == sorted(relevances, reverse=True)
    for walk in found:
        assert float(R(*walk)) == pytest.approx(walk.relevance, rel=1e-4)


def test_walks_through_a_softmax_under_its_own_rule_are_refused() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Softmax(1), nn.Linear(4, 2))
    R = nrm.measure(model, torch.rand(1, 3), rules="attn-lrp", target=0)
    with pytest.raises(nrm.QuestionError, match=r"softmax under its own rule[\s\S]*rules='transformer'"):
        R.walks(k=1)

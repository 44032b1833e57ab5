"""Streamed statistics are those of all samples at once."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

import nrm
from nrm.jobs.moments import Moments, merged
from nrm.questions import Question

A, B = nrm.layer("1"), nrm.layer("3")


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 3)
    ).eval()


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(23, 1, 8, 8), torch.arange(23) % 3


def batches(x: torch.Tensor, y: torch.Tensor, size: int) -> list[Any]:
    return list(zip(x.split(size), y.split(size), strict=True))


@pytest.mark.parametrize("size", [1, 4, 23])
def test_mean_and_variance_are_those_in_memory(model: nn.Module, data: Any, size: int) -> None:
    x, y = data
    s = nrm.stream(model, batches(x, y, size), {"pairs": (A.channels, B.channels), "one": A.channel(2)})
    R = nrm.measure(model, x)
    table = R(A.channels, B.channels).double()
    torch.testing.assert_close(s.mean()["pairs"], table.mean(0), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(s.variance()["pairs"], table.var(0), rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(s.mean()["one"], R(A.channel(2)).double().mean(0), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(s.share_positive()["pairs"], (table > 0).double().mean(0), atol=0.05, rtol=0)
    assert s.count() == 23


def test_by_classes(model: nn.Module, data: Any) -> None:
    x, y = data
    s = nrm.stream(model, batches(x, y, 5), {"a": A.channels}, target="label")
    table = nrm.measure(model, x, target=y)(A.channels).double()
    expected = torch.stack([table[y == c].mean(0) for c in range(3)])
    for by in ("label", "target", y, y.tolist()):
        torch.testing.assert_close(s.mean(by=by)["a"], expected, rtol=1e-5, atol=1e-7)
        assert s.count(by=by) == {0: 8, 1: 8, 2: 7}
    spread = torch.stack([table[y == c].var(0) for c in range(3)])
    torch.testing.assert_close(s.variance(by="label")["a"], spread, rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(s.mean()["a"], table.mean(0), rtol=1e-5, atol=1e-7)
    assert s.classes(by="prediction") == sorted(set(nrm.measure(model, x).prediction.tolist()))


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("weight", ["none", "logit", "softmax"])
def test_weights_and_absolute_values(model: nn.Module, data: Any, weight: str, absolute: bool) -> None:
    x, y = data
    s = nrm.stream(model, batches(x, y, 5), {"a": A.channels}, target="label", weight=weight, absolute=absolute)
    R = nrm.measure(model, x, target=y)
    scale = {
        "none": torch.ones(len(x)), "logit": R.value, "softmax": model(x).softmax(1)[torch.arange(len(x)), y].detach(),
    }[weight]  # fmt: skip
    table = R(A.channels).double() * scale[:, None]
    table = table.abs() if absolute else table
    torch.testing.assert_close(s.mean()["a"], table.mean(0), rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(s.variance()["a"], table.var(0), rtol=1e-3, atol=1e-8)
    torch.testing.assert_close(
        s.mean(by="label")["a"], torch.stack([table[y == c].mean(0) for c in range(3)]), rtol=1e-4, atol=1e-7
    )


def test_global_importance_of_a_linear_model_is_known() -> None:
    model, x = nn.Linear(3, 1).double(), torch.randn(40, 3, dtype=torch.float64)
    s = nrm.stream(model, x.split(7), {"x": nrm.input}, weight="logit", absolute=True, rules="lrp-0", bias="input")
    torch.testing.assert_close(s.mean()["x"], (x * model.weight).abs().mean(0).detach())


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30), st.integers(1, 29), st.floats(-1e8, 1e8))
def test_moments_merge_without_loss(values: list[float], cut: int, far: float) -> None:
    whole = torch.tensor(values, dtype=torch.float64) + far
    cut = min(cut, len(values) - 1)
    both = Moments.of(whole[:cut]).merge(Moments.of(whole[cut:]))
    one = merged(Moments.of(v[None]) for v in whole)
    assert one is not None
    for got in (both, one):
        scale = max(1.0, abs(far)) * 1e-15
        torch.testing.assert_close(got.mean, whole.mean(), rtol=1e-14, atol=1e-15)
        torch.testing.assert_close(got.variance(), whole.var(), rtol=1e-9, atol=scale * 100 + (scale * 100) ** 2)
        assert got.count == len(values)


def test_memory_does_not_grow_with_the_samples(model: nn.Module) -> None:
    alive = []

    def loader() -> Any:
        for number in range(12):
            if number % 4 == 3:
                gc.collect()
                alive.append(sum(t.numel() for t in gc.get_objects() if type(t) is torch.Tensor))
            yield torch.rand(4, 1, 8, 8)

    nrm.stream(model, loader(), {"pairs": (A.channels, B.channels)}).mean()
    assert len(set(alive)) == 1, alive


def test_bad_requests(model: nn.Module, data: Any) -> None:
    x, y = data
    with pytest.raises(nrm.QuestionError, match="unknown weight"):
        nrm.stream(model, [], {"a": A.channels}, weight="logits")
    with pytest.raises(nrm.QuestionError, match="absolute"):
        nrm.stream(model, [], {"a": A.channels}, absolute="yes")
    with pytest.raises(nrm.QuestionError, match="questions have names"):
        nrm.stream(model, [x], (A.channels, B.channels))
    with pytest.raises(nrm.QuestionError, match="not a question"):
        nrm.stream(model, [x], {"a": "1"})
    s = nrm.stream(model, iter([x]), {"a": A.channels})
    with pytest.raises(nrm.QuestionError, match="no such classes"):
        s.mean(by="colour")
    s.mean()
    with pytest.raises(nrm.QuestionError, match="used up"):
        s.mean(by="prediction")
    with pytest.raises(nrm.QuestionError, match="labels and samples do not match"):
        nrm.stream(model, [x], {"a": A.channels}).mean(by=y[:5])
    with pytest.raises(nrm.QuestionError, match="no labels"):
        nrm.stream(model, [x], {"a": A.channels}, target="label").mean()
    with pytest.raises(nrm.NrmError, match="begins with sample 12"):
        nrm.stream(model, [x[:12], torch.full((2, 1, 8, 8), torch.nan)], {"a": A.channels}).mean()


def test_more_classes_than_memory_are_refused(model: nn.Module, data: Any) -> None:
    x, _ = data
    s = nrm.stream(model, batches(x, torch.arange(23), 1), {"n": (A, B.channels)}, memory=400_000)
    with pytest.raises(nrm.MemoryLimitError, match=r"(?s)statistics of all classes.*nrm\.relmax"):
        s.mean(by="label")
    assert s.mean()["n"].shape == (4, 6, 6, 5)


@pytest.mark.parametrize("weight", ["none", "logit"])
def test_conditional_questions_of_every_sample(weight: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    x = torch.rand(5, 4, dtype=torch.float64)
    question = Question.read([nrm.input], given=nrm.layer("1").channel(2))
    found = nrm.stream(model, [x], {"given": question}, rules="lrp-0", weight=weight)
    R = nrm.measure(model, x, rules="lrp-0")
    scale = R.value[:, None] if weight == "logit" else 1.0
    torch.testing.assert_close(found.mean()["given"], (scale * R(R.input, given=R["1"].channel(2))).mean(0))

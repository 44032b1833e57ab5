"""Baselines, and methods judged by contributions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import nrm
from nrm.errors import MemoryLimitError, NrmError, QuestionError
from nrm.evaluate import METHODS, compare, contribution, occlusion, pearson, remove, sc_k, scores
from nrm.measure.measure import Measure


def network(batch: int = 3) -> Measure:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    model[-1].bias.data[2] += 0.5
    x = torch.rand(batch, 5, dtype=torch.float64)
    return nrm.measure(model, x, target=[2, 0, 1][:batch], rules="lrp-0", bias="input")


def test_scores_by_their_definitions() -> None:
    R = network()
    x, a, b = R.input, R["1"], R["3"]
    f = R.value.view(-1, 1, 1)
    torch.testing.assert_close(scores(R, a.channels, b.channels), f * R(a.channels, b.channels))
    marginals = R(a.channels)[:, :, None] + R(b.channels)[:, None]
    torch.testing.assert_close(scores(R, a.channels, b.channels, method="lrp"), f * marginals)
    activations = R.values(a)[:, :, None] + R.values(b)[:, None]
    torch.testing.assert_close(scores(R, a.channels, b.channels, method="activation"), activations)
    torch.testing.assert_close(
        scores(R, b.channels, x, a.channel([0, 3]), method="activation"),
        R.values(b)[:, :, None] + R.values(x)[:, None] + R.values(a)[:, [0, 3]].sum(1).view(-1, 1, 1),
    )
    lost = scores(R, a.channels, b.channel(1), method="occlusion")
    torch.testing.assert_close(lost, occlusion(R, a.channels, b.channel(1)))
    drawn = scores(R, a.channels, b.channels, method="random")
    assert torch.equal(drawn, scores(R, a.channels, b.channels, method="random"))
    assert not torch.equal(drawn, scores(R, a.channels, b.channels, method="random", seed=1))


def test_a_negative_output_turns_the_sign() -> None:
    """Relevance is a share: where the output is negative, shares argue for the negative value, contributions do not."""
    R = network()
    negative = R.value < 0
    assert 0 < int(negative.sum()) < len(R)
    layers = R["1"].channels, R["3"].channels
    C = contribution(R, *layers)
    assert bool((pearson(C, scores(R, *layers)) > 0.5).all())
    assert bool((pearson(C, R(*layers))[negative] < -0.5).all())
    assert "2 of them with an explained output <= 0" in repr(compare(R, *layers))


def test_the_comparison_is_made_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    R = network()
    layers = R.input, R["1"].channels, R["3"].channels
    own = torch.randn(3, 5, 8, 6, dtype=torch.float64)
    found = compare(R, *layers, scores={"mine": own}, k=[1, 5, 240])
    assert found.combinations == 240
    assert list(found.methods) == [*METHODS, "mine"]
    C = contribution(R, *layers)
    tables = {name: scores(R, *layers, method=name) for name in METHODS} | {"mine": own}
    for name, S in tables.items():
        torch.testing.assert_close(found[name].pearson, pearson(C, S))
        torch.testing.assert_close(found[name].sc, sc_k(C, S, [1, 5, 240]))
        torch.testing.assert_close(found[name].area, sc_k(C, S).mean(1))
    assert float(found["nrm"].pearson.mean()) > float(found["lrp"].pearson.mean())
    for argument in (0, 1):  # the first partition is cut into parts, wherever it stands among the arguments
        asked = [layers[0][:3] if argument else layers[0], *layers[1:]]
        whole = compare(R, *asked, scores={"mine": own[:, :3].sum(1) if argument else own})
        with monkeypatch.context() as patched:
            patched.setattr(R.inner, "memory", 40_000)
            parts = compare(R, *asked, scores={"mine": own[:, :3].sum(1) if argument else own})
        for name in (*METHODS[:-1], "mine"):
            torch.testing.assert_close(parts[name].pearson, whole[name].pearson)
            torch.testing.assert_close(parts[name].sc, whole[name].sc)


def test_large_tables_are_ranked_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    R = network()
    layers = R.input, R["1"].channels, R["3"].channels
    whole = compare(R, *layers, k=range(1, 51))
    monkeypatch.setattr("nrm.evaluate.comparison.WHOLE", 50)
    part = compare(R, *layers, k=range(1, 51))
    assert part["nrm"].area is None
    torch.testing.assert_close(part["nrm"].sc, whole["nrm"].sc)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda R: contribution(R), "nothing is removed"),
        (lambda R: contribution("model", R["1"].channels), "not a measure"),
        (lambda R: contribution(R, R["7"].channels), "unknown layer"),
        (lambda R: contribution(R, R["1"].channel(8)), "no such block"),
        (lambda R: contribution(R, R["1"].channels[[2, 2]]), "chosen twice"),
        (lambda R: contribution(R, R["0.bias"].channels), "only tensors"),
        (lambda R: contribution(R, nrm.stack(R["1"].channels, R["3"].channels)), "one partition at a time"),
        (lambda R: remove(R, R["1"].channel(0), value="zeros"), "value='zero'"),
        (lambda R: remove(R, R["1"].channel(0), value=torch.ones(7)), "shape (8,)"),
        (lambda R: remove(R, R["1"].channel(0), value=[1.0, "x"]), "do not fit"),
        (lambda R: remove(R, R["1"].channel(0), value=float("nan")), "not finite"),
        (lambda R: remove(R, R["1"].channel(0), value={"3": 1.0}), "no value for layer '1'"),
        (lambda R: scores(R, R["1"].channels, method="nmr"), "method='nrm'"),
        (lambda R: compare(R, R["1"].channel(1)), "nothing to compare"),
        (lambda R: compare(R, R["1"].channels, scores={"mine": torch.ones(3, 7)}), "shape (3, 8)"),
        (lambda R: compare(R, R["1"].channels, scores={"nrm": torch.ones(3, 8)}), "taken"),
    ],
)
def test_bad_input(call: Any, text: str) -> None:
    with pytest.raises(NrmError) as error:
        call(network())
    assert text in str(error.value)


def test_values_of_a_batch_need_a_batch() -> None:
    R = network(1)
    for value in ("mean", "resample"):
        with pytest.raises(QuestionError, match="needs a batch"):
            remove(R, R["1"].channel(0), value=value)


def test_tables_beyond_the_memory_bound_are_refused() -> None:
    R = network()
    R.inner.memory = 1000
    with pytest.raises(MemoryLimitError, match=r"larger than the memory bound") as error:
        contribution(R, R["1"].channels, R["3"].channels)
    assert "nrm.evaluate.each" in str(error.value)


def test_changed_weights_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    R = nrm.measure(model, torch.ones(1, 3))
    with torch.no_grad():
        model[0].weight.mul_(2.0)
    with pytest.raises(NrmError, match="have changed"):
        contribution(R, R["1"].channels)

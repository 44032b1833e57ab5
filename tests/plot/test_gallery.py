"""Contact sheets show the best samples, cut to what the peak's neuron can see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import nrm
from jobs.shop import A, B, Squares, network
from nrm.jobs import Crops, keep_crops

plt = pytest.importorskip("matplotlib.pyplot")


def test_the_pictures_are_those_of_the_best_samples(tmp_path: Path) -> None:
    data, model = Squares(20), network()
    found = nrm.relmax(model, data, A.channels, (A.channels, B.channels), k=4)
    figure = nrm.plot.gallery(found, A.channel(1), (A.channel(1), B.channel(2)), k=4, model=model, dataset=data)
    axes = figure.axes
    assert [ax.get_title().partition(":")[0] for ax in axes[:4]] == [str(s) for s in found.top(A.channel(1)).samples]
    assert axes[0].get_ylabel() == "1.channel(1)"
    hit = found.top(A.channel(1))[0]
    _, row, column = hit.place
    image = data.x[hit.sample, 0]
    part = image[row : row + 3, column : column + 3]  # the field of a 3 x 3 convolution
    expected = (part - image.min()) / (image.max() - image.min())
    shown = torch.as_tensor(axes[0].images[0].get_array())
    torch.testing.assert_close(shown.float(), expected, atol=3e-3, rtol=0)
    check_pair(found, model, data, axes[4].images[0].get_array())
    figure.savefig(tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size > 2000
    plt.close(figure)
    with pytest.raises(nrm.QuestionError, match="needs the images"):
        nrm.plot.gallery(found, A.channel(1), k=2)
    with pytest.raises(nrm.QuestionError, match="not a picture"):
        Crops(model, torch.rand(20, 4)).of(hit)


def check_pair(found: Any, model: Any, data: Squares, shown: Any) -> None:
    """The first picture of a pair is the field of the neuron of the later layer that has most of the pair's share."""
    pair = (A.channel(1), B.channel(2))
    hit = found.top(*pair)[0]
    assert hit.place is None
    located = Crops(model, data, *pair).locate(hit)
    shares = nrm.measure(model, data.x[hit.sample : hit.sample + 1])(B, *pair)[0]
    assert located.place is not None
    assert float(shares[located.place]) == float(shares.max()) > 0
    _, row, column = located.place  # a convolution of 3 with a margin of 1, a pool of 2, a convolution of 3
    ends = [(max(0, 2 * (i - 1)), min(2 * (i + 1) + 4, 10)) for i in (row, column)]
    assert shown.shape[:2] == tuple(b - a for a, b in ends)
    alone = nrm.relmax(model, data, pair, k=4).top(*pair)
    assert (alone[0].sample, alone[0].place) == (hit.sample, located.place)


def test_a_pruned_pair_says_so() -> None:
    data, model = Squares(20), network()
    found = nrm.relmax(model, data, (A.channels, B.channels), k=4, rows=12)
    pairs = [(A.channel(i), B.channel(j)) for i in range(4) for j in range(5)]
    pruned = [not found.top(*pair).complete for pair in pairs]
    figure = nrm.plot.gallery(found, *pairs, k=4, model=model, dataset=data)
    assert [ax.get_ylabel().endswith("(pruned: may go on)") for ax in figure.axes[::4]] == pruned
    assert any(pruned)
    plt.close(figure)


def test_crops_stay_in_the_store(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="the extra `store` is not installed")
    data, model = Squares(20), network()
    pair = (A.channel(1), B.channel(2))
    store = nrm.relmax(model, data, A.channels, (A.channels, B.channels), k=4, store=tmp_path / "s")
    with pytest.raises(nrm.QuestionError, match="no crops of this block"):
        nrm.plot.gallery(store, A.channel(2), k=3)
    keep_crops(store, model, data, A.channel(2), k=3)
    keep_crops(store, model, data, A.channel(0), pair, k=3)
    kept = nrm.plot.gallery(nrm.open_store(tmp_path / "s"), A.channel(2), A.channel(0), pair, k=3)
    fresh = nrm.plot.gallery(store, A.channel(2), A.channel(0), pair, k=3, model=model, dataset=data)
    for one, other in zip(kept.axes, fresh.axes, strict=True):
        assert (one.images[0].get_array() == other.images[0].get_array()).all()

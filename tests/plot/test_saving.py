"""Every picture saves itself, as a whole or not at all; tables have names at their sides."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import nn

import nrm
from nrm import plot


def measured() -> nrm.Measure:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    )  # fmt: skip
    return nrm.measure(model, torch.rand(1, 1, 8, 8), rules="lrp-0", bias="input")


def found(R: nrm.Measure) -> Any:
    return nrm.relmax(
        R.inner.origin.model, torch.rand(6, 1, 8, 8), R["1"].channels, k=2, progress=False, rules="lrp-0", bias="input"
    )


def written() -> nrm.Generated:
    table = torch.rand(2, 4).tril(2)
    tokens = ("once", "upon", "a", "time", "there")
    R = nrm.measure(nn.Linear(4, 2), torch.rand(1, 4), rules="lrp-0", bias="input")
    return nrm.Generated(table, tokens, 3, torch.rand(2), (False,) * 5, torch.arange(5), R)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


def circuit() -> nrm.Circuit:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(4, 1))
    return nrm.measure(model, torch.rand(1, 4), against=torch.zeros(1, 4)).circuit(top=1.0)


PICTURES: dict[str, Callable[[nrm.Measure], Any]] = {
    "heatmap": lambda R: plot.heatmap(R(R.input)[0], torch.rand(1, 8, 8)),
    "montage": lambda R: plot.montage([(torch.rand(1, 8, 8), R(R.input)[0])]),
    "circuit": lambda R: plot.circuit(circuit()),
    "flows": lambda R: plot.flows(R, R["1"].channels, R["3"].channels),
    "gallery": lambda R: plot.gallery(found(R), R["1"].channel(0), k=2, dataset=torch.rand(6, 1, 8, 8)),
    "generated": lambda R: plot.generated(written()),
    "graph": lambda R: plot.graph(torch.tensor([[0], [1]]), [0.5, 0.5], pos=[[0.0, 0.0], [1.0, 1.0]]),
    "parts": lambda R: plot.parts(R),
    "sc_curves": lambda R: plot.sc_curves([1, 2, 3], {"mine": torch.rand(4, 3)}),
    "scatter": lambda R: plot.scatter(torch.rand(9), torch.rand(9)),
    "series": lambda R: plot.series(torch.rand(6, 2), torch.rand(6, 2)),
    "strips": lambda R: plot.strips(R, torch.rand(1, 8, 8), R["1"].channels, R["3"].channels, k=2),
    "table": lambda R: plot.table(R(R["1"].channels, R["3"].channels)[0], rows=["a", "b", "c"]),
    "text": lambda R: plot.text([0.3, 0.7], ["▁two", "▁words"]),
    "waterfall": lambda R: plot.waterfall([0.3, -0.1, 0.8], ["a", "b", "c"]),
}


def test_every_plot_is_here() -> None:
    drawing = {name for name in plot.__all__ if name[0].islower()} - {"diverging"}
    assert drawing == set(PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_saves_itself(name: str, tmp_path: Path) -> None:
    drawn = PICTURES[name](measured())
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        path = tmp_path / f"{name}.{kind}"
        drawn.save(path)
        assert path.read_bytes().startswith(start)
    picture = plt.imread(tmp_path / f"{name}.png")[..., :3]
    assert min(picture.shape[:2]) > 100
    assert np.ptp(picture) > 0.5  # something is drawn
    with pytest.raises(nrm.QuestionError, match=r"not the name of a picture[\s\S]*png"):
        drawn.save(tmp_path / "picture.docx")
    assert len(os.listdir(tmp_path)) == 3
    plt.close("all")


def test_a_picture_that_cannot_be_drawn_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: Any = PICTURES["heatmap"](measured())
    path = tmp_path / "map.png"
    drawn.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(type(drawn.figure), "savefig", lambda self, path, **options: path.write_text("half") / 0)
    with pytest.raises(ZeroDivisionError):
        drawn.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["map.png"]
    plt.close("all")


def test_text_is_saved_as_a_page(tmp_path: Path) -> None:
    plot.text([0.3, 0.7], ["▁<b>", "▁words"]).save(tmp_path / "text.html")
    page = (tmp_path / "text.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "&lt;b&gt;" in page
    plot.text([0.3, 0.7], ["▁two", "▁words"]).save(tmp_path / "text.png", columns=10)
    assert not plt.get_fignums()  # drawn to be saved, and closed


def test_your_axes_stay_yours() -> None:
    figure, ax = plt.subplots()
    assert plot.heatmap(torch.rand(4, 4), ax=ax) is ax
    assert plot.table(torch.rand(4, 4), ax=ax) is ax
    plt.close(figure)


def test_tables() -> None:
    shares = torch.tensor([[0.9, -0.1, 0.0], [0.2, 0.3, 0.5]])
    ax = plot.table(shares, rows=["Ġnew", "er"], columns=["[CLS]", "play", "##ing"], title="$x$", value=-1.0, rest=0.2)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["new", "er"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["[CLS]", "play", "ing"]
    assert ax.get_title(loc="left") == "$x$"
    assert "negative output" in ax.get_xlabel()
    np.testing.assert_allclose(ax.images[0].get_array(), shares)
    assert ax.images[0].get_clim() == pytest.approx((-0.9, 0.9))
    R = nrm.measure(nn.Linear(3, 2), torch.rand(1, 3), labels={"input": ["age", "bmi", "sex"]}, target=0)
    asked = R.table(R.input, R.output)
    named = plot.table(asked)
    assert [t.get_text() for t in named.get_yticklabels()] == ["age", "bmi", "sex"]
    assert [t.get_text() for t in named.get_xticklabels()] == ["0", "1"]
    assert named.get_ylabel() == "input"
    assert [t.get_text() for t in plot.table(asked, rows=["a", "b", "c"]).get_yticklabels()] == ["a", "b", "c"]
    with pytest.raises(nrm.QuestionError, match="rows and columns"):
        plot.table(R.table(R.input))
    for arguments in ({"rows": ["a"]}, {"columns": "abc"}, {"columns": [1, 2, 3]}):
        with pytest.raises(nrm.QuestionError, match="do not fit the table"):
            plot.table(shares, **arguments)  # type: ignore[arg-type]
    plt.close("all")

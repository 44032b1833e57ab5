"""Coloured text: tokens become words, everything is escaped, colours are those of the heat maps."""

from __future__ import annotations

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex, to_rgb

import nrm
from nrm.plot import diverging, text
from nrm.plot.colors import color_at
from nrm.plot.words import read_pieces


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["ĠOnce", "Ġup", "on", "Ċ", "Ġtime"], "Once upon⏎\n time"),
        (["<s>", "▁Once", "▁up", "on", "<0x0A>", "▁a"], "<s> Once upon⏎\n a"),
        (["[CLS]", "play", "##ing", "well", "[SEP]"], "[CLS] playing well [SEP]"),
        (["a", "few", "words"], "a few words"),
        (["Once", " upon", " a", "\n", "time"], "Once upon a⏎\ntime"),
        (["▁"], "␣"),
        (["##"], "##"),
    ],
)
def test_marks_of_tokenizers(tokens: list[str], expected: str) -> None:
    assert "".join(" " * p.space + p.text + "\n" * p.ends for p in read_pieces(tokens)) == expected


def test_html_is_escaped_and_colored() -> None:
    picture = text(torch.tensor([[0.5, -1.0, 0.0]]), ["<b>", '"&', "x"], title="<i>", labels=("<", ">"), value=-2.0)
    source = picture._repr_html_()
    assert "<b>" not in source
    assert "<i>" not in source
    assert "&lt;b&gt;" in source
    assert "&quot;&amp;: −100 %" in source
    assert f"background:{color_at(-1.0)};color:#ffffff" in source
    assert "background:#ffffff" in source
    assert "negative output" in source


def test_colors_are_those_of_the_heat_maps() -> None:
    for level in np.linspace(-1, 1, 41):
        ours, theirs = to_rgb(color_at(float(level))), to_rgb(to_hex(diverging()((level + 1) / 2)))
        assert np.abs(np.subtract(ours, theirs)).max() < 0.012


def test_the_drawing_shows_every_token_in_its_color() -> None:
    tokens = ["▁The", "▁cat", "▁s", "at", "▁down"]
    ax = text([1.0, -0.5, 0.25, 0.0, 0.5], tokens, title="$ is no mathematics", rest=0.1).draw(columns=8)
    assert [t.get_text() for t in ax.texts] == ["The", "cat", "s", "at", "down"]
    assert [to_hex(p.get_facecolor()) for p in ax.patches] == [color_at(r) for r in (1.0, -0.5, 0.25, 0.0, 0.5)]
    lines = [t.get_position()[1] for t in ax.texts]
    assert lines == [0, 0, 1, 1, 1]
    own = plt.subplots()[1]
    assert text([1.0], ["a"]).draw(own) is own
    ax.figure.canvas.draw()


@pytest.mark.parametrize(
    ("relevance", "tokens", "match"),
    [
        ([1.0, 2.0], ["a"], "1 tokens, 2 numbers"),
        ([[1.0], [2.0]], ["a"], "relevance\\[i\\]"),
        ([float("nan")], ["a"], "not finite"),
        ([1.0], "a", "list of texts"),
        ([], [], "not a line"),
    ],
)
def test_complaints(relevance: list, tokens: list[str], match: str) -> None:
    with pytest.raises(nrm.QuestionError, match=match) as caught:
        text(relevance, tokens)
    assert "nrm.plot.text" in str(caught.value)


def test_scale_and_zero() -> None:
    assert "all zero" in text([0.0, 0.0], ["a", "b"]).html
    assert text([1.0, 4.0], ["a", "b"], scale=2).limit == 2
    assert "clipped" in text([1.0, 4.0], ["a", "b"], scale=2).html

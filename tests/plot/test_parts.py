"""All that a model reads in one picture: one colour scale, the share of each thing, patches where they belong."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from torch import Tensor, nn

import nrm
from nrm.errors import QuestionError
from nrm.plot import parts
from nrm.plot.colors import color_at


class Reader(nn.Module):
    """An image by patches, a sound by frames and a text by tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.hear, self.words = nn.Conv2d(3, 4, 4, 4), nn.Conv1d(5, 4, 3, padding=1), nn.Embedding(9, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, pixel_values: Tensor, input_features: Tensor, input_ids: Tensor) -> Tensor:
        seen, heard = self.look(pixel_values).flatten(2).mT, self.hear(input_features).mT
        found: Tensor = self.head(torch.cat([seen, heard, self.words(input_ids)], 1).tanh().mean(1))
        return found


def measured(samples: int = 1) -> nrm.Measure:
    torch.manual_seed(0)
    x = {
        "pixel_values": torch.rand(samples, 3, 8, 12), "input_features": torch.rand(samples, 5, 30),
        "input_ids": torch.tensor([[3, 1, 4, 4, 4]]).expand(samples, -1),
    }  # fmt: skip
    return nrm.measure(Reader(), x, rules="lrp-0", bias="input", target=1)


WORDS = ["a", "red", "fish", "in", "it"]


def panel(figure: Any, name: str) -> Axes:
    found: Axes = next(ax for ax in figure.axes if ax.get_title(loc="left").startswith(name))
    return found


def colours(ax: Axes) -> list[str]:
    return [mpl.colors.to_hex(patch.get_facecolor()) for patch in ax.patches]


def test_every_part_has_its_share_in_the_title_and_the_rest_is_noted() -> None:
    R = measured()
    figure = parts(R, {"text": WORDS})
    shares = {name: float(part.sum()) for name, part in R.parts.split(R(R.parts)).items()}
    minus = "\N{MINUS SIGN}"
    for name in ("image", "sound", "text"):
        said = panel(figure, name).get_title(loc="left").replace(minus, "-")
        assert said == f"{name} {100 * shares[name]:.1f} %"
    (note,) = [text.get_text().replace(minus, "-") for text in figure.axes[-2].texts if text.get_text()]
    assert note.endswith(f"constants have {100 * shares['constants']:.1f} %")


def test_one_scale_for_patches_segments_and_tokens() -> None:
    R = measured()
    figure = parts(R, {"text": WORDS}, segments=10)
    found = {name: part[0].numpy() for name, part in R.parts.split(R(R.parts)).items()}
    sound = found["sound"].reshape(10, 3).sum(1)
    limit = max(np.abs(values).max() for values in (found["image"], sound, found["text"]))
    picture = panel(figure, "image").images[-1]
    (mesh,) = [c for c in panel(figure, "sound").collections if isinstance(c, QuadMesh)]
    np.testing.assert_allclose(picture.get_clim(), (-limit, limit))
    np.testing.assert_allclose(mesh.get_clim(), (-limit, limit))
    np.testing.assert_allclose(np.asarray(picture.get_array()), found["image"])
    np.testing.assert_allclose(np.asarray(mesh.get_array()).ravel(), sound, rtol=1e-5)
    assert colours(panel(figure, "text")) == [color_at(r / limit) for r in found["text"]]
    assert [text.get_text() for text in panel(figure, "text").texts] == WORDS
    bar = figure.axes[-1]
    np.testing.assert_allclose(bar.get_xlim(), (-limit, limit))
    figure.canvas.draw()


def test_pictures_spectrograms_and_waves_lie_under_the_colours() -> None:
    R = measured()
    photo, wave = torch.rand(3, 16, 24), torch.sin(torch.linspace(0, 60, 300))
    figure = parts(R, {"image": photo, "sound": wave, "text": WORDS}, seconds=0.1, title="a fish")
    assert np.asarray(panel(figure, "image").images[0].get_array()).shape == (16, 24)
    (line,) = panel(figure, "sound").lines
    np.testing.assert_allclose(line.get_ydata(), wave)
    assert panel(figure, "sound").get_xlim() == (0, pytest.approx(3.0))
    assert panel(figure, "sound").get_xlabel().startswith("seconds")
    assert "a fish" in [text.get_text() for text in figure.axes[-2].texts]
    plain = parts(R)
    assert np.asarray(panel(plain, "sound").images[0].get_array()).shape == (5, 30)
    assert [text.get_text() for text in panel(plain, "text").texts] == ["0", "1", "2", "3", "4"]


def test_what_follows_the_last_relevance_of_a_sound_is_left_out() -> None:
    torch.manual_seed(0)
    x = {
        "pixel_values": torch.rand(1, 3, 8, 12), "input_features": torch.rand(1, 5, 30),
        "input_ids": torch.tensor([[3, 1, 4, 4, 4]]),
    }  # fmt: skip
    silent = x["input_features"].clone()
    silent[..., :10] = 0
    R = nrm.measure(Reader(), x, target=1, against={**x, "input_features": silent})
    ax = panel(parts(R), "sound")
    assert ax.get_xlim() == (0, 11 if float(R(R.parts["sound"])[0, 10]) else 10)


def test_an_answer_about_a_part_of_the_network_is_drawn_in_the_same_way() -> None:
    R = measured()
    answer = R(R.parts, R["head"].input[1])
    figure = parts(R, relevance=answer)
    share = float(R.parts.split(answer)["text"].sum())
    assert panel(figure, "text").get_title(loc="left").endswith(f"{100 * abs(share):.1f} %")


def test_places_of_an_image_are_drawn_as_one_token() -> None:
    torch.manual_seed(0)
    x = {
        "pixel_values": torch.rand(1, 3, 8, 12), "input_features": torch.rand(1, 5, 30),
        "input_ids": torch.tensor([[3, 4, 4, 4, 1]]),
    }  # fmt: skip
    other = {**x, "input_ids": torch.tensor([[5, 4, 4, 4, 2]])}
    R = nrm.measure(Reader(), x, target=1, against=other)
    figure = parts(R, {"text": ["a", "<image>", "<image>", "<image>", "?"]})
    assert [text.get_text() for text in panel(figure, "text").texts] == ["a", "<image> x 3", "?"]


class Rows(nn.Module):
    """Reads patches in one row, as Qwen-VL does: squares of two by two, one after the other."""

    class Config:
        class vision_config:  # noqa: N801
            spatial_merge_size = 2

    config = Config()

    def __init__(self) -> None:
        super().__init__()
        self.look, self.words = nn.Linear(3, 4, bias=False), nn.Embedding(9, 4)

    def forward(self, pixel_values: Tensor, input_ids: Tensor) -> Tensor:
        return torch.cat([self.look(pixel_values)[None], self.words(input_ids)], 1).sum((1, 2))[:, None]


def test_patches_in_a_row_are_drawn_where_they_were_cut_out() -> None:
    torch.manual_seed(0)
    image = torch.rand(3, 4, 6)  # every pixel is a patch
    order = [(2 * R + r, 2 * C + c) for R in range(2) for C in range(3) for r in range(2) for c in range(2)]
    rows = torch.stack([image[:, r, c] for r, c in order])
    R = nrm.measure(Rows(), {"pixel_values": rows, "input_ids": torch.tensor([[1]])}, rules="lrp-0", bias="input")
    figure = parts(R, {"image": image})
    drawn = np.asarray(panel(figure, "image").images[-1].get_array())
    shares = R(R.parts["image"])[0]
    for (r, c), share in zip(order, shares, strict=True):
        assert drawn[r, c] == pytest.approx(float(share))
    with pytest.raises(QuestionError, match="row of patches"):
        parts(R)


def test_of_several_texts_those_with_relevance_are_drawn() -> None:
    from several import subject

    R = nrm.measure(*subject("clip"))
    lists = [[f"{text}{i}" for i in range(7)] for text in "abc"]
    ax = panel(parts(R, {"text": lists}), "text")
    assert [text.get_text() for text in ax.texts] == lists[int(R.target)]


@pytest.mark.parametrize(
    ("read", "match"),
    [
        ({"video": 1}, "no such part"),
        ({"text": ["too", "few"]}, "tokens do not fit"),
        ({"text": "a text"}, "tokens do not fit"),
        ({"sound": torch.rand(5, 3)}, "does not fit the sound"),
        ({"sound": torch.rand(2, 5, 30)}, "does not fit the sound"),
        ({"image": torch.rand(3, 20, 80)}, "do not fit"),
    ],
)
def test_what_does_not_fit_is_an_error_that_says_so(read: dict[str, Any], match: str) -> None:
    with pytest.raises(QuestionError, match=match) as refused:
        parts(measured(), read)
    assert "nrm.plot.parts" in str(refused.value)


def test_one_sample_and_answers_about_its_parts() -> None:
    R = measured(2)
    with pytest.raises(QuestionError, match="one sample"):
        parts(R)
    parts(R.sample(1))
    with pytest.raises(QuestionError, match="not an answer about the parts"):
        parts(R.sample(0), relevance=torch.rand(3))

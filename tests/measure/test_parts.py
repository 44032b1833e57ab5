"""What a model reads as one axis: a cut whose units are patches, frames, tokens and constants."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.errors import QuestionError
from several import MAKERS, subject

pytestmark = pytest.mark.filterwarnings("ignore::nrm.NrmWarning")

SHAPES = {
    "clip": {"image": (4, 4), "text": (3, 7)},
    "siglip": {"image": (4, 4), "text": (3, 7)},
    "blip": {"image": (4, 4), "text": (7,)},
    "llava": {"image": (4, 4), "text": (21,)},
    "paligemma": {"image": (4, 4), "text": (20,)},
    "qwen2vl": {"image": (24,), "text": (12,)},
    "qwen25vl": {"image": (24,), "text": (12,)},
    "t5": {"input_ids": (7,), "decoder_input_ids": (3,)},
    "bart": {"input_ids": (7,), "decoder_input_ids": (3,)},
    "marian": {"input_ids": (7,), "decoder_input_ids": (3,)},
    "whisper": {"sound": (24,), "text": (3,)},
    "speech2text": {"sound": (24,), "text": (3,)},
    "wav2vec2": {"sound": (400,)},
    "captioner": {"image": (4, 4), "text": (3,)},
}
"""What every model reads, in units."""


def inner_layer(R: nrm.Measure) -> nrm.Layer:
    """A layer inside the network, with channels."""
    rows = [row for row in R.layers if row.kind == "linear" and row.channel is not None and row.bypassed]
    return R[rows[len(rows) // 2].name]


@pytest.mark.parametrize("name", MAKERS)
def test_parts_are_a_cut_with_the_shares_of_the_input_cut(name: str) -> None:
    """Image and sound have what their inputs have, texts what is added for their tokens, constants the rest."""
    R = nrm.measure(*subject(name))
    answer = R(R.parts)
    torch.testing.assert_close(answer.sum(1), torch.ones(1, dtype=answer.dtype))
    found = R.parts.split(answer)
    shapes = {key: tuple(value.shape[1:]) for key, value in found.items()}
    assert shapes == {**SHAPES[name], "constants": ()}
    shares = {str(part): R(part.all) for part in R.inputs}
    for part in R.parts.read:
        torch.testing.assert_close(R(R.parts[part.name]).reshape(1, *part.shape), found[part.name])
        if part.kind in ("image", "sound"):
            torch.testing.assert_close(found[part.name].sum(), shares[part.partition.layer.name].sum())
    rest = [shares[str(unit.layer)] for unit in R.parts.constants]
    torch.testing.assert_close(found["constants"], sum(rest, torch.zeros(1, dtype=answer.dtype)))


@pytest.mark.parametrize("name", ["clip", "llava", "t5", "bart", "whisper", "captioner"])
def test_parts_and_a_channel_inside_are_asked_together(name: str) -> None:
    """What flows through a channel comes from the units, and from constants on the way to it."""
    R = nrm.measure(*subject(name))
    layer = inner_layer(R)
    torch.testing.assert_close(R(R.parts, layer.channel(3)).sum(1), R(layer.channel(3)), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", ["clip", "captioner", "llava"])
def test_patches_are_those_of_the_model(name: str) -> None:
    model, inputs = subject(name)
    R = nrm.measure(model, inputs)
    pixels = R(R["input.pixel_values"])[0].sum(0)
    blocks = pixels.reshape(4, 4, 4, 4).sum((1, 3))
    torch.testing.assert_close(R.parts.split(R(R.parts))["image"][0], blocks)


@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_both_texts_have_all_that_is_added_for_their_tokens(name: str) -> None:
    R = nrm.measure(*subject(name))
    with pytest.raises(QuestionError, match="several sequences") as refused:
        _ = R.tokens
    assert "R.parts" in str(refused.value)
    for part, side in zip(R.parts.read, ("encoder", "decoder"), strict=True):
        sources = [p for p in R.inputs if f"{side}.embed" in str(p) and ".bias" not in str(p)]
        expected = sum(R(p.positions) for p in sources)
        torch.testing.assert_close(R(R.parts[part.name]), expected)


def test_a_contrast_has_the_same_parts_whatever_differs() -> None:
    model, inputs = subject("llava")
    plain = nrm.measure(model, inputs)
    for other in (
        {**inputs, "pixel_values": inputs["pixel_values"].flip(-1)},
        {**inputs, "input_ids": torch.where(inputs["input_ids"] == 5, 6, inputs["input_ids"])},
    ):
        R = nrm.measure(model, inputs, against=other)
        assert R.parts.read == plain.parts.read
        found = R.parts.split(R(R.parts))
        differs = "image" if other["input_ids"] is inputs["input_ids"] else "text"
        torch.testing.assert_close(found[differs].sum(), torch.ones((), dtype=torch.float64))


def test_averages_and_differences_have_parts() -> None:
    model, inputs = subject("captioner")
    seen = inputs["pixel_values"]
    R = nrm.measure(model, inputs, against=[{**inputs, "pixel_values": c * torch.ones_like(seen)} for c in (0.0, 0.5)])
    torch.testing.assert_close(R(R.parts).sum(1), torch.ones(1, dtype=torch.float64))
    one, other = (nrm.measure(model, inputs, target=(-1, word)) for word in (3, 4))
    D = one - other
    assert float(D(D.parts).sum()) == pytest.approx(0, abs=1e-8)


class Reader(nn.Module):
    """Cuts an image into patches with a frame left over, or reads it by pixels."""

    def __init__(self, kernel: int, stride: int, padding: int = 0) -> None:
        super().__init__()
        self.look, self.words = nn.Conv2d(2, 4, kernel, stride, padding), nn.Embedding(9, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, pixel_values: Tensor, input_ids: Tensor) -> Tensor:
        seen = self.look(pixel_values * 2).flatten(2).mT
        found: Tensor = self.head(torch.cat([seen, self.words(input_ids)], 1).relu().mean(1))
        return found


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "shape"), [(3, 3, 0, (2, 3)), (3, 2, 0, (7, 10)), (3, 3, 1, (7, 10))]
)
def test_an_image_without_patches_is_read_by_pixels(
    kernel: int, stride: int, padding: int, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    x = {"pixel_values": torch.rand(2, 2, 7, 10), "input_ids": torch.tensor([[3, 1], [4, 1]])}
    R = nrm.measure(Reader(kernel, stride, padding), x, bias="input")
    assert [part.shape for part in R.parts.read] == [shape, (2,)]
    torch.testing.assert_close(R(R.parts).sum(1), torch.ones(2))


def test_parts_are_shown_and_named_in_tables() -> None:
    torch.manual_seed(0)
    x = {"pixel_values": torch.rand(1, 2, 6, 6), "input_ids": torch.tensor([[3, 1]])}
    R = nrm.measure(Reader(3, 3), x, rules="lrp-0", bias="input")
    assert repr(R.parts) == "parts(image 2x2, text 2, 2 constants)  # a cut: their relevances add up to 1"
    table = R.table(R.parts)
    assert table.labels[str(R.parts)][-2:] == ("look.bias", "head.bias")


def test_plain_inputs_are_numbers() -> None:
    R = nrm.measure(nn.Linear(4, 2), torch.rand(2, 4), bias="input")
    assert [(part.name, part.kind, part.shape) for part in R.parts.read] == [("numbers", "numbers", (4,))]
    torch.testing.assert_close(R(R.parts)[:, :4], R(R.input))


def test_wrong_names_and_axes_are_errors_that_say_so() -> None:
    R = nrm.measure(nn.Linear(4, 2), torch.rand(2, 4), bias="input")
    with pytest.raises(QuestionError, match="no such part") as refused:
        R.parts["image"]
    assert "'numbers'" in str(refused.value)
    with pytest.raises(QuestionError, match="the axis has other parts"):
        R.parts.split(R(R.input))

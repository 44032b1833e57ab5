"""Images, sounds and texts in one model, and decoders behind encoders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
from oracles.gradient import HeldFactors
from several import MAKERS, WRITTEN, Subject, noise, subject, words

pytestmark = pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
COMPARE = ("clip", "siglip")
TEXT_ONLY = ("t5", "bart", "marian")
ONES = torch.ones(1, dtype=torch.float64)


@pytest.fixture(scope="module", params=MAKERS)
def known(request: pytest.FixtureRequest) -> tuple[str, Subject, nrm.Measure]:
    made = subject(request.param)
    return request.param, made, nrm.measure(*made)


def logits(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        result = model(**inputs)
    found: Tensor = result.logits_per_image if "logits_per_image" in result else result.logits
    return found


def everything(R: nrm.Measure) -> Tensor:
    return sum((R(part.all) for part in R.inputs), torch.zeros(len(R), dtype=torch.float64))


def test_the_value_is_the_models_own_and_the_whole_input_has_mass_one(known: tuple[str, Subject, nrm.Measure]) -> None:
    """Some of these models compute softmax and angles in single precision, whatever their weights have."""
    _, made, R = known
    torch.testing.assert_close(R.values(R.output), logits(*made), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(everything(R), ONES)
    check = R.check(strict=False)
    assert check.mass == pytest.approx((1,), abs=1e-9)
    assert check.cut_error is not None
    assert check.cut_error < 1e-8


def test_the_default_target(known: tuple[str, Subject, nrm.Measure]) -> None:
    """The best text for an image, and the next token of whatever is written."""
    name, made, R = known
    own = logits(*made)
    if name in COMPARE:
        assert R.target.tolist() == [int(own[0].argmax())]  # type: ignore[union-attr]
    elif name != "wav2vec2":
        assert R.target.tolist() == [[own.shape[1] - 1, int(own[0, -1].argmax())]]  # type: ignore[union-attr]


@contextmanager
def watched(model: nn.Module, inputs: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Float inputs, and the embeddings of tokens, as tensors that have gradients."""
    leaves = {f"input.{k}": v.clone().requires_grad_() for k, v in inputs.items() if v.is_floating_point()}
    hooks = []

    def look(module: nn.Module, given: tuple[Any, ...], out: Tensor) -> Tensor:
        for key, ids in inputs.items():
            name, words = f"input.{key}", key.endswith("input_ids") and isinstance(given[0], Tensor)
            if words and name not in leaves and torch.equal(given[0], ids):
                leaves[name] = out.detach().requires_grad_()
                return leaves[name].clone()  # models add positions in place
        return out

    hooks = [m.register_forward_hook(look) for m in model.modules() if isinstance(m, nn.Embedding)]
    try:
        yield leaves
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("name", [n for n in MAKERS if n not in ("siglip", "bart", "paligemma")])
def test_gradient_times_input_of_the_held_network(name: str) -> None:
    """LRP-0 with biases as inputs; of a product of an image and a text, each has half of what its gradient says.

    SigLIP pools by torch's fused attention, in which nothing can be held; the embeddings of BART and PaliGemma are
    scaled inside, where no hook sees them before.
    """
    model, inputs = subject(name)
    R = nrm.measure(model, inputs, rules="lrp-0", bias="input", target=0 if name in COMPARE else (-1, 7))
    with watched(model, inputs) as leaves, HeldFactors():
        result = model(**{k: leaves.get(f"input.{k}", v) for k, v in inputs.items()})
        output = result.logits_per_image[0, 0] if name in COMPARE else result.logits[0, -1, 7]
        gradients = torch.autograd.grad(output, list(leaves.values()))
    share = 0.5 if name in COMPARE else 1.0
    single = len(leaves) == 1 and len(inputs) == 1
    for (key, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        expected = share * (leaf * gradient / output).detach()
        found = R(R["input" if single else key])
        size = float(expected.abs().max())
        torch.testing.assert_close(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5 * size, msg=key)


# ---- decoders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t5", "bart", "whisper", "captioner", "speech2text"])
def test_a_decoder_without_tokens_begins_with_the_start_token(name: str) -> None:
    model, inputs = subject(name)
    alone = {k: v for k, v in inputs.items() if k != "decoder_input_ids"}
    start = 0 if name == "t5" else 2
    R = nrm.measure(model, alone)
    plain = nrm.measure(model, {**alone, "decoder_input_ids": torch.tensor([[start]])})
    torch.testing.assert_close(R.values(R.output), plain.values(plain.output))
    assert R.target.tolist() == plain.target.tolist()  # type: ignore[union-attr]
    assert f"start token {start}" in repr(R)


@pytest.mark.parametrize("name", ["t5", "bart", "marian", "whisper", "captioner", "speech2text"])
def test_labels_are_read_moved_by_one_and_padding_is_left_out(name: str) -> None:
    model, inputs = subject(name)
    alone = {k: v for k, v in inputs.items() if k != "decoder_input_ids"}
    labels = torch.tensor([[5, 6, 7, -100]])
    R = nrm.measure(model, {**alone, "labels": labels})
    own = logits(model, {**alone, "labels": labels})
    torch.testing.assert_close(R.values(R.output)[:, :3], own[:, :3], rtol=1e-5, atol=1e-5)
    assert int(R.target[0, 0]) == 2  # type: ignore[index]
    assert labels.tolist() == [[5, 6, 7, -100]]


def test_no_start_token_is_an_error_that_says_so() -> None:
    model, inputs = subject("captioner")
    before = model.config.decoder_start_token_id
    model.config.decoder_start_token_id = None  # type: ignore[union-attr]
    try:
        with pytest.raises(nrm.CaptureError, match="no token to begin with"):
            nrm.measure(model, {"pixel_values": inputs["pixel_values"]})
    finally:
        model.config.decoder_start_token_id = before  # type: ignore[union-attr]


def test_positions_are_those_of_the_decoder_whatever_the_encoder_reads() -> None:
    """Two tokens are read, three were written: the prediction is behind the third, and masks are told apart."""
    model, _ = subject("t5")
    R = nrm.measure(model, {"input_ids": words(1, 2), "decoder_input_ids": WRITTEN})
    assert int(R.target[0, 0]) == 2  # type: ignore[index]
    ids, seen = words(2, 3), torch.tensor([[1, 1, 0], [1, 1, 1]])
    written = {
        "decoder_input_ids": WRITTEN.repeat(2, 1),
        "decoder_attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
    }
    R = nrm.measure(model, {"input_ids": ids, "attention_mask": seen, **written})
    assert R.target[:, 0].tolist() == [2, 0]  # type: ignore[index]


# ---- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llava", "qwen2vl", "qwen25vl", "whisper", "captioner"])
def test_a_batch_is_its_samples(name: str) -> None:
    """Patches of all images that lie in one row are told apart by the places that the texts keep for them."""
    model, inputs = subject(name)
    other = {k: v.flip(-1) if v.is_floating_point() else v for k, v in inputs.items()}
    both = nrm.measure(model, {k: torch.cat([v, other[k]]) for k, v in inputs.items()})
    torch.testing.assert_close(everything(both), ONES.repeat(2))
    seen = next(f"input.{k}" for k, v in inputs.items() if v.is_floating_point())
    assert not any("held constant" in note for note in both.inner.tape.notes)
    for i, one in enumerate((inputs, other)):
        R = nrm.measure(model, one)
        torch.testing.assert_close(both.value[i : i + 1], R.value)
        own = R(R[seen])
        found = both(both[seen])[i]
        rows = slice(i * len(own[0]), (i + 1) * len(own[0])) if found.shape != own[0].shape else slice(None)
        torch.testing.assert_close(found[rows], own[0], rtol=1e-4, atol=1e-7)
        assert float(found.sum()) == pytest.approx(float(own.sum()), abs=1e-6)


def test_several_images_and_texts_are_one_sample_with_pairs_as_outputs() -> None:
    model, inputs = subject("clip")
    pictures = noise(2, 3, 16, 16)
    R = nrm.measure(model, {**inputs, "pixel_values": pictures}, target=(1, 2))
    torch.testing.assert_close(R.values(R.output)[0], logits(model, {**inputs, "pixel_values": pictures}))
    torch.testing.assert_close(everything(R), ONES)
    assert float(R(R["input.pixel_values"])[0, 0].abs().sum()) == 0  # the other image has no part in it
    alone = nrm.measure(model, {**inputs, "pixel_values": pictures[1:]}, target=2)
    torch.testing.assert_close(R(R["input.pixel_values"])[0, 1:], alone(alone["input.pixel_values"]))


# ---- contrasts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "what"),
    [*((n, "written") for n in TEXT_ONLY), ("wav2vec2", "seen"),
     *((n, w) for n in MAKERS if n not in (*TEXT_ONLY, "wav2vec2") for w in ("seen", "written", "both"))],
)  # fmt: skip
def test_contrasts_have_mass_one(name: str, what: str) -> None:
    """An image or a sound against a grey one, words against others: the difference is where they differ."""
    model, inputs = subject(name)
    seen = [k for k, v in inputs.items() if v.is_floating_point()]
    written = [k for k in ("decoder_input_ids", "input_ids") if k in inputs]
    chosen = {"seen": seen, "written": written, "both": seen + written}[what]
    other = dict(inputs)
    for key in chosen:
        given = inputs[key]
        moved = torch.where((given < 40) & (given > 2), (given + 5) % 36 + 3, given)
        other[key] = torch.zeros_like(given) if given.is_floating_point() else moved
    R = nrm.measure(model, inputs, against=other)
    torch.testing.assert_close(everything(R), ONES, rtol=1e-8, atol=1e-8)
    for key in [*seen, *written]:
        share = float(R(R[_layer(R, key)].all)[0])
        assert (abs(share) > 1e-9) == (key in chosen), (key, share)


def _layer(R: nrm.Measure, key: str) -> str:
    return f"input.{key}" if f"input.{key}" in R.inner.tape.names else "input"


@pytest.mark.parametrize("name", ["clip", "llava", "captioner"])
def test_an_image_against_its_blurred_self(name: str) -> None:
    model, inputs = subject(name)
    R = nrm.measure(model, inputs, against="blur")
    torch.testing.assert_close(R(R["input.pixel_values"].all), ONES, rtol=1e-8, atol=1e-8)

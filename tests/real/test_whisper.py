"""Whisper-tiny hears a sentence: every word comes from where it is spoken."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

import nrm
import vision

with suppress(pytest.skip.Exception):
    vision.load()  # before transformers, which imports it

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("scipy", reason="scipy is not installed")

from real.whisper import Listener, can_speak, load_whisper, silence, speak

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SENTENCE = "The dog chased the cat."
TENTH, FRAMES = 10, 500


@pytest.fixture(scope="module")
def listener(shared: Callable[[str], Path]) -> Listener:
    home = shared("whisper-tiny")
    if not can_speak():
        pytest.skip("espeak-ng is not installed, which speaks the sentence")
    return load_whisper(home)


@pytest.fixture(scope="module")
def heard(listener: Listener) -> Tensor:
    return listener.hear(speak(SENTENCE))


def against_silence(listener: Listener, heard: Tensor, written: str) -> nrm.Measure:
    words = {"decoder_input_ids": listener.begin(written)}
    return nrm.measure(
        listener.model, {"input_features": heard, **words}, against={"input_features": silence(heard), **words}
    )  # fmt: skip


def test_every_word_comes_from_where_it_is_spoken(listener: Listener, heard: Tensor) -> None:
    """The strongest tenth of a second moves on with the words; all of the difference from silence is in the sound.

    The window is five seconds, for speed; in so short a one Whisper-tiny does not hear the dog.
    """
    assert listener.write(heard).strip() == SENTENCE
    short, brief = listener.within(FRAMES), heard[..., :FRAMES]
    strongest = []
    words = SENTENCE.rstrip(".").split()
    for count in (0, 2, 3, 4):
        R = against_silence(short, brief, "".join(f" {w}" for w in words[:count]))
        said = short.tokenizer.decode(int(R.prediction[0, 1])).strip()
        assert said.lower() == words[count].lower()
        sound = R(R.parts["sound"])[0]
        torch.testing.assert_close(sound.sum(), torch.ones(()), rtol=1e-4, atol=1e-4)
        strongest.append(int(sound.reshape(-1, TENTH).sum(1).argmax()))
    assert strongest == sorted(set(strongest))
    assert strongest[0] <= 2
    assert strongest[-1] >= 11


def test_what_is_heard_and_what_is_guessed(listener: Listener, heard: Tensor) -> None:
    """Against silence and other words: most of the last word is heard, and a dog makes a cat more likely."""
    said, nothing = listener.begin(" The dog chased the"), listener.begin(" ... ... ... ...")
    assert said.shape == nothing.shape
    R = nrm.measure(
        listener.model, {"input_features": heard, "decoder_input_ids": said},
        against={"input_features": silence(heard), "decoder_input_ids": nothing},
    )  # fmt: skip
    answer = R(R.parts)
    torch.testing.assert_close(answer.sum(), torch.ones(()), rtol=1e-4, atol=1e-4)
    found = R.parts.split(answer)
    assert 0.7 < float(found["sound"].sum()) < 0.95
    tokens = listener.tokenizer.convert_ids_to_tokens(said[0])
    assert tokens[int(found["text"][0].argmax())] == "Ġdog"


def test_the_measure_itself_holds(listener: Listener, heard: Tensor) -> None:
    brief, model = heard[..., :FRAMES], listener.within(FRAMES).model
    R = nrm.measure(model, {"input_features": brief})
    assert "start token 50258" in repr(R)
    check = R.check(strict=False)
    assert check.mass == pytest.approx((1,), abs=1e-3)
    with torch.no_grad():
        own = model(input_features=brief, decoder_input_ids=torch.tensor([[50258]])).logits
    torch.testing.assert_close(R.values(R.output), own, rtol=1e-3, atol=1e-3)

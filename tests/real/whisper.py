"""Whisper-tiny and sentences that are spoken by espeak-ng."""

from __future__ import annotations

import copy
import io
import shutil
import subprocess
import wave
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.signal import resample_poly
from torch import Tensor

RATE = 16_000
FRAME = 0.01  # seconds


class Listener(NamedTuple):
    """The model, what makes its input of a wave, and its tokenizer."""

    model: Any
    features: Any
    tokenizer: Any

    def hear(self, spoken: Tensor) -> Tensor:
        """The input for a wave."""
        found: Tensor = self.features(spoken.numpy(), sampling_rate=RATE, return_tensors="pt").input_features
        return found

    def begin(self, text: str = "") -> Tensor:
        """The tokens of a decoder that writes English without times, and has written a text."""
        marks = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
        written = self.tokenizer(text, add_special_tokens=False).input_ids
        return torch.tensor([[*self.tokenizer.convert_tokens_to_ids(marks), *written]])

    def write(self, heard: Tensor, most: int = 20) -> str:
        """What the model writes, the most likely token first."""
        tokens = self.begin()
        before = tokens.shape[1]
        with torch.no_grad():
            encoded = self.model.get_encoder()(heard)
            for _ in range(most):
                best = self.model(encoder_outputs=encoded, decoder_input_ids=tokens).logits[:, -1:].argmax(-1)
                if int(best) == self.tokenizer.eos_token_id:
                    break
                tokens = torch.cat([tokens, best], 1)
        text: str = self.tokenizer.decode(tokens[0, before:])
        return text

    def within(self, frames: int) -> Listener:
        """A listener whose window is shorter than the 3,000 frames of half a minute: the encoder's first places."""
        model = copy.deepcopy(self.model)
        encoder, places = model.get_encoder(), frames // 2
        kept = encoder.embed_positions.weight.detach()[:places].clone()
        encoder.embed_positions = torch.nn.Embedding.from_pretrained(kept)
        model.config.max_source_positions = places
        return self._replace(model=model)


def load_whisper(home: Path) -> Listener:
    """Whisper-tiny as ``make whisper`` leaves it."""
    import transformers

    hub: Any = transformers
    model = hub.WhisperForConditionalGeneration.from_pretrained(home, dtype=torch.float32).eval()
    return Listener(
        model, hub.WhisperFeatureExtractor.from_pretrained(home), hub.WhisperTokenizer.from_pretrained(home)
    )  # fmt: skip


def can_speak() -> bool:
    """Whether espeak-ng is installed."""
    return shutil.which("espeak-ng") is not None


def speak(text: str) -> Tensor:
    """A sentence as a wave at 16 kHz."""
    made = subprocess.run(["espeak-ng", "-v", "en-us", "-s", "140", "--stdout", text], check=True, capture_output=True)
    with wave.open(io.BytesIO(made.stdout)) as file:
        heard = np.frombuffer(file.readframes(-1), np.int16) / 2**15
        spoken = resample_poly(heard, RATE, file.getframerate())
    return torch.from_numpy(np.ascontiguousarray(spoken))


def silence(heard: Tensor) -> Tensor:
    """The input of a wave of which nothing is heard."""
    return torch.full_like(heard, float(heard.min()))

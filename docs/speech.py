"""Draws docs/images/speech.png: a word that Whisper-tiny writes, from the sound that it hears and the words before it.

The model is that of the tests, which ``make whisper`` fetches; the sentence is spoken by espeak-ng.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import matplotlib

import nrm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import vision  # noqa: E402
from real.whisper import FRAME, load_whisper, silence, speak  # noqa: E402

SPOKEN, WRITTEN, OTHER = "The dog chased the cat.", " The dog chased the", " ... ... ... ..."


def main() -> None:
    """Speak, listen, explain the last word, and draw what it owes to sound and words."""
    matplotlib.use("Agg")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "speech.png")
    options = parser.parse_args()
    vision.load()
    homes = (Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data"), ROOT / "out" / "data")
    listener = load_whisper(next(home for home in homes if (home / "whisper-tiny").exists()) / "whisper-tiny")
    heard, written = listener.hear(speak(SPOKEN)), listener.begin(WRITTEN)
    R = nrm.measure(
        listener.model, {"input_features": heard, "decoder_input_ids": written},
        against={"input_features": silence(heard), "decoder_input_ids": listener.begin(OTHER)},
    )  # fmt: skip
    tokens = listener.tokenizer.convert_ids_to_tokens(written[0])
    nrm.plot.parts(R, {"text": tokens}, seconds=FRAME, segments=16).save(options.out)
    print({name: round(float(part.sum()), 3) for name, part in R.parts.split(R(R.parts)).items()})
    print(options.out)


if __name__ == "__main__":
    main()

"""Draws docs/images/generated.png: what a small language model writes, and the words that every word comes from.

stories15M and its tokenizer are the real data of the tests: beside the repository, or in ``$NRM_DATA``.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import matplotlib
import torch

import nrm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from real.stories import Tokenizer, load_stories  # noqa: E402

PROMPT = "The dog was very hungry. His mom gave him some"


def main() -> None:
    """Write on, explain every word, and draw the table."""
    matplotlib.use("Agg")
    home = Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data") / "stories15M"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "generated.png")
    parser.add_argument("--words", type=int, default=12, help="how many tokens are generated")
    options = parser.parse_args()
    model, tokenizer = load_stories(home), Tokenizer(home / "tokenizer.bin")
    prompt = tokenizer.batch(PROMPT)
    whole = model.generate(  # type: ignore[operator]
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=options.words, do_sample=False
    )
    begin, end = prompt.shape[1], whole.shape[1]
    target = (list(range(begin - 1, end - 1)), whole[0, begin:].tolist())
    R = nrm.measure(model, {"input_ids": whole.repeat(end - begin, 1)}, target=target)
    tokens = [tokenizer.pieces[i].strip() or "␣" for i in whole[0].tolist()]
    sources = R(R.tokens)[:, 1:-1]  # without the mark of the beginning, and the last word, which nothing comes from
    nrm.plot.table(sources, rows=tokens[begin:], columns=tokens[1:-1], scale="98%").save(options.out)
    print(options.out)


if __name__ == "__main__":
    main()

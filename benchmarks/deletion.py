"""Deletion of tokens on stories15M: how the predicted logit falls when tokens lose their embedding, in three orders.

Needs the data ($NRM_DATA or ../shared/data) and transformers. Prints the mean change of the logit over 20 prompts.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import nrm  # noqa: E402
from real.stories import PROMPTS, Tokenizer, deletion_curve, load_stories  # noqa: E402

HOME = Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data") / "stories15M"
STEPS = 6
DRAWS = 5


def main() -> None:
    """Prints the table of curves, and the total variation."""
    warnings.simplefilter("ignore")
    model, tokenizer = load_stories(HOME), Tokenizer(HOME / "tokenizer.bin")
    curves: dict[str, list[list[float]]] = {"most relevant first": [], "random": [], "least relevant first": []}
    curves["most relevant first, last token kept"] = []
    curves["random, last token kept"] = []
    variations = []
    for prompt in PROMPTS:
        ids = tokenizer.batch(prompt)
        R = nrm.measure(model, {"input_ids": ids})
        variations.append(max(max(v) for v in R.check(strict=False).variation.values()))
        token = int(R.target[0, 1])
        order = R(R.input.positions)[0].argsort(descending=True).tolist()
        last = len(order) - 1
        orders = [("most relevant first", order), ("least relevant first", order[::-1]),
                  ("most relevant first, last token kept", [i for i in order if i != last])]  # fmt: skip
        for seed in range(DRAWS):
            drawn = torch.randperm(len(order), generator=torch.Generator().manual_seed(seed)).tolist()
            orders += [("random", drawn), ("random, last token kept", [i for i in drawn if i != last])]
        for name, places in orders:
            curve = deletion_curve(model, ids, places[:STEPS], token)
            curves[name].append([value - curve[0] for value in curve])
    print(f"total variation over {len(PROMPTS)} prompts: {min(variations):.1f} to {max(variations):.1f}\n")
    print("| mean change of the logit | " + " | ".join(f"{k} deleted" for k in range(1, STEPS + 1)) + " |")
    print("|---" * (STEPS + 1) + "|")
    for name, found in curves.items():
        mean = torch.tensor(found).mean(0)
        print(f"| {name} | " + " | ".join(f"{float(v):+.2f}" for v in mean[1:]) + " |")


if __name__ == "__main__":
    main()

"""The table of generated tokens beside single heat maps, in forward passes of the whole text.

Processor time on one thread, medians of interleaved repetitions. ``make smollm2`` fetches SmolLM2-135M; it is in
$NRM_DATA, out/data or ../shared/data, where stories15M is, too. Tokens are random; time does not depend on them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

import nrm

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]

from contrast import HOMES, load, times  # noqa: E402


def load_stories15m() -> nn.Module | None:
    """stories15M in float32, or None where its weights are not."""
    from real.stories import load_stories

    return next((load_stories(home / "stories15M") for home in HOMES if (home / "stories15M").exists()), None)


def line(model: nn.Module, prompt: int, written: int, repeat: int) -> str:
    """A row of the table: the text, a heat map of its last token, all of its tokens together, and all in a stream."""
    torch.manual_seed(0)
    ids = torch.randint(5, model.config.vocab_size, (1, prompt + written))

    def run() -> object:
        with torch.no_grad():
            return model(ids)

    def heat() -> object:
        R = nrm.measure(model, {"input_ids": ids[:, :-1], "logits_to_keep": 1}, target=(-1, int(ids[0, -1])))
        return R(R.tokens)

    def table() -> object:
        return nrm.generated(model, None, ids[:, :prompt], answer=ids[:, prompt:])

    found = times({"run": run, "heat": heat, "table": table}, repeat)
    passes = {name: each / found["run"] for name, each in found.items()}
    ratio, each = found["table"] / found["heat"], (passes["table"] - passes["heat"]) / max(1, written - 1)
    return f"| {prompt} + {written} | {passes['heat']:.1f} | {passes['table']:.1f} | {ratio:.1f} | {each:.2f} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--texts", nargs="*", default=["32+16", "64+32", "128+64"], help="prompt + generated tokens")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, model in (("stories15M", load_stories15m()), ("SmolLM2-135M", load())):
        if model is None:
            print(f"no {name} in {' or '.join(map(str, HOMES))}")
            continue
        print(
            f"| {name}: prompt + generated | heat map | table | in heat maps | a further token |\n|---|---|---|---|---|"
        )
        for text in options.texts:
            prompt, written = map(int, text.split("+"))
            print(line(model, prompt, written, options.repeat), flush=True)


if __name__ == "__main__":
    main()

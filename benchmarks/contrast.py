"""A contrast of SmolLM2-135M: heat map, direct edges and edges of attention, in forward passes of one run of the model.

Processor time on one thread, medians of interleaved repetitions. ``make smollm2`` fetches the model; it is in
$NRM_DATA, out/data or ../shared/data. Tokens are random, one of them exchanged in the reference; time does not depend
on them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import nrm

ROOT = Path(__file__).resolve().parents[1]
HOMES = [Path(os.environ["NRM_DATA"])] if os.environ.get("NRM_DATA") else [
    ROOT / "out" / "data", ROOT.parent / "shared" / "data"]  # fmt: skip
SWEEPS = 2.5
"""What a heat map may cost beyond the two runs of the model, in forward passes."""


def load() -> nn.Module | None:
    """SmolLM2 in float32, or None where its weights are not."""
    sys.path.insert(0, str(ROOT / "tests"))
    from real.smollm2 import FOLDER, load_smollm2

    return next((load_smollm2(home / FOLDER)[0] for home in HOMES if (home / FOLDER).exists()), None)


def pair_of(tokens: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """A text of random tokens, and its twin with another token in the middle."""
    ids = torch.randint(1000, vocabulary, (1, tokens), generator=torch.Generator().manual_seed(0))
    other = ids.clone()
    other[0, tokens // 2] = (ids[0, tokens // 2] + 1) % vocabulary
    return ids, other


def times(
    jobs: dict[str, Callable[[], object]], repeat: int, of: Callable[[list[float]], float] = statistics.median
) -> dict[str, float]:
    """The median processor time of every job, all of them in turn, after one run that does not count."""
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeat + 1):
        for name, job in jobs.items():
            begin = time.process_time()
            job()
            if turn:
                found[name].append(time.process_time() - begin)
    return {name: of(each) for name, each in found.items()}


def edges_of(R: nrm.Measure, layers: int) -> Tensor:
    """The edges of all attention steps, ``(batch, layers, heads, queries, keys)``."""
    return R(nrm.stack(*(R[f"model.layers.{i}.self_attn"].edges for i in range(layers))))


def error_of(R: nrm.Measure, edges: Tensor) -> float:
    """How far the edges of a layer are from its mass, at most, beside the largest absolute sum of a layer."""
    masses = [R(R[f"model.layers.{i}.self_attn.o_proj"].input.all) for i in range(edges.shape[1])]
    return float((edges.sum((2, 3, 4)) - torch.stack(masses, 1)).abs().max() / edges.abs().sum((2, 3, 4)).max())


def lines(model: nn.Module, tokens: int, repeat: int, direct: bool) -> None:
    """Prints what questions cost for so many tokens."""
    ids, other = pair_of(tokens, model.config.vocab_size)
    layers = model.config.num_hidden_layers

    def run() -> object:
        with torch.no_grad():
            return model(ids)

    def contrast() -> nrm.Measure:
        return nrm.measure(model, ids, against=other, output=difference_of_logits, progress=False)

    def plain() -> nrm.Measure:
        return nrm.measure(model, ids, output=difference_of_logits, progress=False)

    def heat(R: nrm.Measure) -> nrm.Measure:
        R(R.input.positions)
        return R

    asked: dict[str, Callable[[], object]] = {
        "run": run, "both runs captured": contrast, "heat map": lambda: heat(contrast()),
        "edges": lambda: edges_of(contrast(), layers), "plain heat map": lambda: heat(plain()),
        "plain edges": lambda: edges_of(plain(), layers),
    }  # fmt: skip
    if direct:
        asked["direct"] = lambda: heat(contrast()).direct()
    found = times(asked, repeat)
    one = {name: each / found["run"] for name, each in found.items()}
    R = contrast()
    rows = [
        ("both runs captured", f"{one['both runs captured']:.1f}", ""),
        ("heat map", f"{one['heat map']:.1f}", f"{2 + SWEEPS}"),
        ("edges of attention, all layers", f"{one['edges']:.1f}", f"{2 * one['heat map']:.1f}"),
        ("largest error of a layer's mass", f"{error_of(R, edges_of(R, layers)):.0e}", ""),
        ("plain measure: heat map", f"{one['plain heat map']:.1f}", ""),
        (
            "plain measure: edges of attention, all layers",
            f"{one['plain edges']:.1f}",
            f"{2 * one['plain heat map']:.1f}",
        ),
    ]
    if direct:
        rows.insert(2, ("heat map and all direct edges", f"{one['direct']:.1f}", f"{2 * one['heat map']:.1f}"))
    print(f"| **{tokens} tokens** (one forward pass: {1e3 * found['run']:.0f} ms) | | |")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def difference_of_logits(output: object) -> Tensor:
    """The difference of two logits at the last position."""
    logits: Tensor = output.logits[:, -1]  # type: ignore[attr-defined]
    return logits[:, 2000] - logits[:, 3000]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="*", default=[14, 64, 256, 1024])
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load()
    if model is None:
        print(f"no SmolLM2 in {' or '.join(map(str, HOMES))}: make smollm2 fetches it")
        return
    print("| SmolLM2-135M, exact contrast, capture included | forward passes | bound |\n|---|---|---|")
    for tokens in options.tokens:
        lines(model, tokens, options.repeat if tokens < 1000 else 1, direct=tokens < 1000)


if __name__ == "__main__":
    main()

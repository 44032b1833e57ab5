"""Every direct edge of stories15M patched by itself, as exact ground truth for scores of edges.

An edge is patched in the clean run: its reader alone is given what its writer wrote in the corrupted run, and all that
is above is computed again. Its effect is what the log-odds of the answers lose by that, the mean over pairs. In the
corrupted run it is given what its writer wrote in the clean one, and its effect is what the log-odds gain. The pairs
are sentences about a girl or a boy, "Lucy had a red ball." and "Tom had a red ball.", answered by " She" or " He". The
weights are in $NRM_DATA or ../shared/data; one thread.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import nrm
from nrm.evaluate.patching import PatchedPart
from nrm.evaluate.streams import CircuitRun, Outside
from nrm.measure import possible_edges

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data")
GIRLS, BOYS = ("Lucy", "Anna", "Mary", "Emma", "Sue"), ("Tom", "Tim", "Ben", "Max", "Jack")
ANSWERS = " She", " He"
SENTENCES = (
    "{} was sad.", "{} had a red ball.", "{} saw a big dog.", "{} went to the park.", "{} wanted to eat a cake.",
    "One day, {} was very happy.",
)  # fmt: skip
METHODS = ("contrast", "eap", "eap-ig", "relp", "gim", "activation difference", "random")
IN_UNITS = METHODS[:5]
"""Those whose scores are in units of the output, so that a slope of effects over scores says something."""
LARGEST = 0.01
"""The share of edges that count as those that matter: they have the largest exact effects."""


class LastLogits(nn.Module):
    """A language model that returns the logits of the last position only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """The logits ``(batch, vocabulary)``."""
        logits: Tensor = self.model(ids, logits_to_keep=1).logits[:, 0]
        return logits


def task(count: int) -> tuple[nn.Module, nrm.tasks.Pairs] | None:
    """The model and so many pairs; None where the weights are not."""
    home = DATA / "stories15M"
    if not home.exists():
        return None
    sys.path.insert(0, str(ROOT / "tests"))
    from real.stories import Tokenizer, load_stories

    encode = Tokenizer(home / "tokenizer.bin").encode
    rows = []
    for n in range(count):
        names = GIRLS[n % len(GIRLS)], BOYS[(n + n // len(BOYS)) % len(BOYS)]
        texts = [SENTENCES[n % len(SENTENCES)].format(name) for name in names]
        ids = [torch.tensor(encode(text)) for text in texts]
        answers = [encode(text + answer)[-1] for text, answer in zip(texts, ANSWERS, strict=True)]
        one = (n + n // len(SENTENCES)) % 2  # every sentence is clean with a girl, and with a boy
        two = 1 - one
        rows.append(
            nrm.tasks.TaskPair(
                ids[one], ids[two], (answers[one],), (answers[two],), (texts[one], texts[two]),
                ((ANSWERS[one],), (ANSWERS[two],)),
            )
        )  # fmt: skip
    return LastLogits(load_stories(home)).eval(), nrm.tasks.Pairs(tuple(rows), "pronouns")


def exact_effects(R: nrm.Measure, stack: int) -> Iterator[Tensor]:
    """What every edge by itself changes of the explained output, ``(edges, samples)``, in stacks of edges."""
    part, edges = PatchedPart(R), R.direct()
    run = CircuitRun(R.inner, part.stream, edges.writers, edges.readers, Outside(part.there))
    exists = possible_edges(edges.writers, edges.readers)
    whole = torch.ones(1, *exists.shape)
    ends = part.explained(run.run(torch.cat([whole, 0 * whole])))
    torch.testing.assert_close(ends, torch.stack([part.clean, part.corrupted]), rtol=1e-4, atol=1e-4)
    for places in exists.nonzero().split(stack):
        inside = whole.repeat(len(places), 1, 1)
        inside[torch.arange(len(places)), places[:, 0], places[:, 1]] = 0
        yield part.clean - part.explained(run.run(inside))


def effects(model: nn.Module, pairs: nrm.tasks.Pairs, stack: int) -> Tensor:
    """The mean effect of every edge in the clean run."""
    total = torch.zeros(())
    for batch in pairs.by_length(len(pairs)):
        R = nrm.measure(model, batch.clean, against=batch.corrupted, output=batch.odds, progress=False)
        total = total + torch.cat([some.sum(1) for some in exact_effects(R, stack)])
        print(f"{len(batch)} pairs of {batch.clean.shape[1]} tokens are patched", file=sys.stderr, flush=True)
    return total / len(pairs)


def turned(pairs: nrm.tasks.Pairs) -> nrm.tasks.Pairs:
    """Pairs in which the corrupted input is the clean one: what its answers lose is what the others gain."""
    items = [replace(p, clean=p.corrupted, corrupted=p.clean, answers=p.wrong, wrong=p.answers) for p in pairs]
    return nrm.tasks.Pairs(tuple(items), pairs.name)


def row(method: str, scores: Tensor, exact: Tensor) -> str:
    """A line of the table: correlation, slope, and how well the largest effects are found."""
    many = max(1, round(LARGEST * len(exact)))
    largest = torch.zeros(len(exact), dtype=torch.bool)
    largest[exact.abs().topk(many).indices] = True
    both = torch.stack([scores, exact]).double()
    pearson = float(both.corrcoef()[0, 1])
    slope = float((both[0] * both[1]).sum() / (both[0] ** 2).sum())
    told = f"{slope:.2f}" if method in IN_UNITS else ""
    return f"| {method} | {pearson:.3f} | {told} | {nrm.tasks.auroc(scores.abs(), largest):.3f} |"


def show(where: str, scores: dict[str, Tensor], exact: Tensor) -> None:
    """Prints a table."""
    print(f"\n| patched {where} | Pearson | slope | AUROC of the largest {100 * LARGEST:.0f} % |")
    print("|---|---|---|---|")
    for method, found in scores.items():
        print(row(method, found, exact), flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--stack", type=int, default=32, help="edges that are patched together")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = task(options.pairs)
    if found is None:
        print(f"no stories15M in {DATA}")
        return
    model, pairs = found
    print(pairs, pairs.accuracy(model), sep="\n", file=sys.stderr, flush=True)
    scores, differences = {}, []
    for method in METHODS:
        made = nrm.evaluate.edge_scores(model, pairs, method)
        scores[method] = made.values[possible_edges(made.writers, made.readers)]
        differences.append(float(made.value.mean()))
    begin = time.process_time()
    clean = effects(model, pairs, options.stack)
    seconds = time.process_time() - begin
    print(f"{pairs.accuracy(model)}; mean difference {differences[0]:.2f}")
    print(f"{len(clean)} edges, each patched on every pair in {seconds:.0f} s")
    show("in the clean run", scores, clean)
    show("in both runs, the mean", scores, (clean + effects(model, turned(pairs), options.stack)) / 2)


if __name__ == "__main__":
    main()

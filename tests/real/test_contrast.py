"""Law 15 on a trained language model: every cut of a contrast has mass 1, in float32, through thirty layers."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.questions import StreamEnd
from real.smollm2 import FOLDER, load_smollm2

pytestmark = [pytest.mark.slow, pytest.mark.data, pytest.mark.filterwarnings("ignore::nrm.NrmWarning")]

PAIRS = 2
BOUND = 1e-5


Twins = tuple[Tensor, Tensor, int, int]
"""A sentence and its twin, as tokens, and the two names whose logits are compared."""


@pytest.fixture(scope="module")
def indirect(shared: Callable[[str], Path]) -> tuple[nn.Module, list[Twins]]:
    """SmolLM2 and pairs of sentences that differ in one name."""
    home = shared(FOLDER)
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model, _, _ = load_smollm2(home)

    tokenizer = transformers.AutoTokenizer.from_pretrained(home)
    with (shared("tasks") / "ioi.csv").open() as file:
        rows = list(csv.DictReader(file))
    found: list[Twins] = []
    for row in rows:
        clean, twin = (tokenizer(row[k], return_tensors="pt")["input_ids"] for k in ("clean", "corrupted_hard"))
        if clean.shape == twin.shape and len(found) < PAIRS:
            at = int((clean != twin)[0].nonzero()[0, 0])
            found.append((clean, twin, int(twin[0, at]), int(clean[0, at])))
    assert len(found) == PAIRS
    return model, found


def contrasted(model: nn.Module, clean: Tensor, twin: Tensor, one: int, other: int) -> nrm.Measure:
    return nrm.measure(model, clean, against=twin, output=lambda o: o.logits[:, -1, one] - o.logits[:, -1, other])


def test_indirect_objects_of_smollm2(indirect: tuple[nn.Module, list[Twins]]) -> None:
    """The difference of two sentences that differ in one name, at every cut of the residual stream and between."""
    model, pairs = indirect
    for pair in pairs:
        explain(model, *pair)


def test_direct_edges_of_smollm2(indirect: tuple[nn.Module, list[Twins]]) -> None:
    """All edges of its residual stream: those into the output are everything, those into a reader all that it has."""
    model, pairs = indirect
    R = contrasted(model, *pairs[0])
    edges = R.direct()
    assert (len(edges.writers), len(edges.readers), len(edges)) == (301, 481, 70_651)
    table = edges.relevance[0].double()
    size = float(table.abs().sum(0).max())
    assert float(table[:, -1].sum()) == pytest.approx(1.0, abs=BOUND)
    above = torch.tensor([[w.crossing > r.crossing for r in edges.readers] for w in edges.writers])
    assert float(table[above].abs().max()) == 0
    incoming, expected = table.sum(0), torch.tensor([relevance_of(R, reader) for reader in edges.readers]).double()
    print(f"largest error of a reader {float((incoming - expected).abs().max()):.1e}, beside {size:.2f}")
    assert float((incoming - expected).abs().max()) <= BOUND


def relevance_of(R: nrm.Measure, reader: StreamEnd) -> float:
    """What a reader has, asked for by itself; queries of several heads share the keys and values of one."""
    if reader.heads is None:
        return 1.0 if reader.kind == "logits" else float(R(R[reader.name].all))
    assert reader.head is not None
    each = R(getattr(R[reader.name], reader.kind).heads)[0]
    return float(each.view(reader.heads[1], -1)[reader.head].sum())


def explain(model: nn.Module, clean: Tensor, twin: Tensor, one: int, other: int) -> None:
    """Only the exchanged name differs, so all of the difference is its; and every cut has all of it."""
    R = contrasted(model, clean, twin, one, other)
    heat = R(R.input.positions)[0]
    same = (clean == twin)[0]
    assert float(heat[same].abs().max()) == 0
    assert float(heat.sum()) == pytest.approx(1.0, abs=BOUND)
    check = R.check()
    assert check.cut_error is not None
    print(f"worst mass error {check.cut_error:.1e} at {check.worst_cut}, of {len(check.cuts)} cuts")
    assert check.cut_error <= BOUND
    assert max(max(row) for row in check.variation.values()) < 10
    assert check.sinks == {}

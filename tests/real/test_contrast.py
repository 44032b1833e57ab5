"""Law 15 on a trained language model: every cut of a contrast has mass 1, in float32, through thirty layers."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import nrm
from real.smollm2 import FOLDER, load_smollm2

pytestmark = [pytest.mark.slow, pytest.mark.data, pytest.mark.filterwarnings("ignore::nrm.NrmWarning")]

PAIRS = 2
BOUND = 1e-5


def test_indirect_objects_of_smollm2(shared: Callable[[str], Path]) -> None:
    """The difference of two sentences that differ in one name, at every cut of the residual stream and between."""
    home = shared(FOLDER)
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model, _, _ = load_smollm2(home)

    tokenizer = transformers.AutoTokenizer.from_pretrained(home)
    with (shared("tasks") / "ioi.csv").open() as file:
        rows = list(csv.DictReader(file))
    done = 0
    for row in rows:
        clean, twin = (tokenizer(row[k], return_tensors="pt")["input_ids"] for k in ("clean", "corrupted_hard"))
        if clean.shape != twin.shape or done == PAIRS:
            continue
        done += 1
        at = int((clean != twin)[0].nonzero()[0, 0])
        subject, other = int(clean[0, at]), int(twin[0, at])
        explain(model, clean, twin, other, subject)
    assert done == PAIRS


def explain(model: torch.nn.Module, clean: Tensor, twin: Tensor, one: int, other: int) -> None:
    """Only the exchanged name differs, so all of the difference is its; and every cut has all of it."""
    R = nrm.measure(model, clean, against=twin, output=lambda o: o.logits[:, -1, one] - o.logits[:, -1, other])
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

"""The tasks that circuits are found for: SmolLM2 on three of them, or a small transformer that knows induction."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from nrm.errors import QuestionError
from nrm.extras import extra
from nrm.reproduce.data import MissingDataError, folder_of
from nrm.reproduce.experiment import Setting
from nrm.tasks import Accuracy, Pairs, greater_than, induction, read_pairs

SCORED, JUDGED = 20, 12
"""So many pairs score edges, and so many others judge the circuits."""

MADE, YEARS = 96, 600
"""So many pairs are made where a task is not read; of years more, as those of one decade have one set of answers."""


@dataclass(frozen=True, eq=False)
class CircuitTask:
    """A model and the pairs of a task, all of one shape, so that they are measured together."""

    name: str
    model: nn.Module
    pairs: Pairs

    def halves(self, seed: int) -> tuple[Pairs, Pairs]:
        """Pairs to score with, and others to judge by."""
        return self.pairs.split(SCORED, JUDGED, seed=seed)

    @property
    def accuracy(self) -> Accuracy:
        """How well the model does on all pairs."""
        return self.pairs.accuracy(self.model, 32)


def circuit_tasks(setting: Setting) -> dict[str, CircuitTask]:
    """The tasks that are asked for."""
    if setting.embedded:
        model, pairs = induction(MADE)
        return {"induction": CircuitTask("induction", model, pairs)}
    names = setting.tasks or tuple(TASKS)
    for name in names:
        if name not in TASKS:
            raise QuestionError(f"unknown task {name!r}", expected=", ".join(TASKS))
    network, tokenizer = _smollm2(str(_weights(setting.data)))
    return {name: CircuitTask(name, network, _of_one_shape(TASKS[name](setting.data, tokenizer))) for name in names}


def _of_one_shape(pairs: Pairs) -> Pairs:
    """The pairs of the commonest shape: of one length, with as many right and as many wrong answers."""
    shapes = [(len(p.clean), len(p.answers), len(p.wrong)) for p in pairs]
    counts = Counter(shapes)
    shape = min(some for some, count in counts.items() if count == max(counts.values()))
    return pairs.take([n for n, one in enumerate(shapes) if one == shape])


def _ioi(data: Path | None, tokenizer: Any) -> Pairs:
    return read_pairs(folder_of(data, "tasks", "prompts") / "ioi.csv", tokenizer, bad="skip")


def _agreement(data: Path | None, tokenizer: Any) -> Pairs:
    home = folder_of(data, "tasks", "prompts")
    parts = [read_pairs(home / f"sva_simple_{part}.jsonl", tokenizer, bad="skip") for part in ("train", "test")]
    return Pairs(parts[0].items + parts[1].items, "agreement", parts[0].notes)


def _greater_than(data: Path | None, tokenizer: Any) -> Pairs:
    return greater_than(tokenizer, count=YEARS)


TASKS: Mapping[str, Callable[[Path | None, Any], Pairs]] = {
    "ioi": _ioi, "agreement": _agreement, "greater-than": _greater_than,
}  # fmt: skip


def _weights(data: Path | None) -> Path:
    """The folder of SmolLM2: in the data, or where ``make smollm2`` puts it."""
    home = Path(os.environ.get("NRM_DATA", "out/data"))
    places = [] if data is None else [data / "smollm2-135m"]
    for place in (*places, home / "smollm2-135m"):
        if (place / "config.json").is_file():
            return place
    raise MissingDataError(
        "no weights of SmolLM2-135M", where=str(data) if data else "no data folder was given",
        expected="a folder 'smollm2-135m' in Hugging Face's layout",
        hint="make smollm2 fetches it; --embedded needs none",
    )  # fmt: skip


@cache
def _smollm2(home: str) -> tuple[nn.Module, Any]:
    with extra("text", "nrm reproduce circuits"):
        from transformers import AutoModelForCausalLM, AutoTokenizer
    model: nn.Module = AutoModelForCausalLM.from_pretrained(home, dtype="float32")
    return model.train(False), AutoTokenizer.from_pretrained(home)


__all__ = ["TASKS", "CircuitTask", "circuit_tasks"]

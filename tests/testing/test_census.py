"""A sample of the census, and what becomes of cases that fail."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import vision
from nrm.testing.census import CensusCase, Subject, alone, cases_of, judge, run
from nrm.testing.census.judge import nearer
from nrm.testing.census.page import page
from nrm.testing.census.running import read

SAMPLE = [
    ("torch.nn", "LSTM"), ("torch.nn", "Conv3d"), ("torch.nn", "CrossEntropyLoss"),
    ("torch_geometric", "GATConv"), ("torch_geometric", "PNAConv"), ("torch_geometric", "SetTransformerAggregation"),
    ("torchvision", "shufflenetv2"), ("timm", "resnet"),
    ("transformers", "gpt2"), ("transformers", "mamba"), ("transformers", "vit"), ("transformers", "xlnet"),
]  # fmt: skip
NEEDS = {"torch_geometric": "torch_geometric", "timm": "timm", "transformers": "transformers"}


@pytest.mark.parametrize(("of", "name"), SAMPLE)
def test_a_sample_is_answered(of: str, name: str) -> None:
    if of in ("torchvision", "timm", "transformers"):
        vision.load()
    pytest.importorskip(NEEDS.get(of, "torch"))
    case = next(case for case in cases_of(of) if case.name == name)
    row = judge(case.of, case.name, case.make)
    assert (row.verdict, row.contrast_verdict) == ("answered", "answered"), row
    assert max(row.value or 0, row.mass or 0, row.cuts or 0, row.contrast or 0) < 1e-4


def _subject(function: object = torch.relu) -> Subject:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = function(self.first(x))  # type: ignore[operator]
            return result

    torch.manual_seed(0)
    return Subject(Model(), torch.ones(1, 4), torch.zeros(1, 4))


def _stuck() -> Subject:
    while True:
        pass


def _greedy() -> Subject:
    kept = torch.ones(1 << 30)
    return Subject(nn.Identity(), kept, kept)


def _ended() -> Subject:
    os._exit(3)


def test_cases_that_fail_are_found_out_about_and_nothing_is_done_twice(tmp_path: Path) -> None:
    made: list[str] = []

    def case(name: str, make: object) -> CensusCase:
        return CensusCase("test", name, make)  # type: ignore[arg-type]

    def refused(y: Tensor) -> Tensor:
        return torch.special.airy_ai(y)

    def broken(y: Tensor) -> Tensor:
        raise KeyError("no such thing")

    cases = [
        case("good", _subject), case("refused", lambda: _subject(refused)), case("broken", lambda: _subject(broken)),
        case("stuck", _stuck), case("greedy", _greedy), case("ended", _ended),
    ]  # fmt: skip
    path = tmp_path / "census.jsonl"
    run(cases, path, limit=4.0, room=1 << 30, told=lambda row: made.append(row.name))
    assert made == [c.name for c in cases]
    with path.open("a") as file:
        file.write('{"of": "test", "name": "cut o')  # a run that was killed
    verdicts = {row["name"]: row["verdict"] for row in read(path)}
    assert verdicts == {
        "good": "answered", "refused": "refused", "broken": "failed", "stuck": "too large", "greedy": "too large",
        "ended": "failed",
    }  # fmt: skip
    known = {row["name"]: row for row in read(path)}
    assert "airy" in known["refused"]["words"]
    assert "KeyError" in known["broken"]["words"]
    assert "code 3" in known["ended"]["words"]
    run(cases, path, told=lambda row: made.append(row.name), again=lambda row: row["verdict"] == "refused")
    assert made == [*(c.name for c in cases), "refused"]
    assert [row["name"] for row in read(path)] == sorted(known)
    assert json.loads(path.read_text().splitlines()[-1])["name"] == "refused"


def test_a_page_has_totals_and_every_refusal() -> None:
    def row(name: str, verdict: str, words: str = "", contrast: str = "answered") -> dict[str, object]:
        return {**judge("timm", name, _stop).describe(), "verdict": verdict, "words": words,
                "contrast_verdict": contrast, "cost": 8.0}  # fmt: skip

    said = "the relevances of this measure cannot be trusted; sample 0; 97 % of the mass is in sinks, most at x; help"
    text = page([row("a", "answered"), row("b", "answered", contrast="refused"), row("c", "refused", said, ""),
                 row("d", "not made", "", ""), row("e", "refused", "no rule for <airy>; layer x", "")])  # fmt: skip
    assert "| timm | 2 | 2 | 0 | 0 | 0 | 0 | 1 | 50 % | 25 % | 8 |" in text
    assert "- 97 % of the mass is in sinks: c (timm)" in text
    assert "- no rule for airy: e (timm)" in text
    assert "## Wrong\n\nNone." in text


def _stop() -> Subject:
    raise KeyError


def test_near_inputs_are_near() -> None:
    x, y = torch.zeros(1, 3), torch.ones(1, 3)
    assert [float(near.sum()) for near in nearer(Subject(nn.Identity(), x, y))] == pytest.approx([3e-2, 3e-4])
    ids = torch.tensor([[1, 2, 3]])
    assert [near["ids"].tolist() for near in nearer(Subject(nn.Identity(), {"ids": ids}, {"ids": ids + 5}))] == [
        [[1, 2, 8]], [[1, 7, 3]], [[6, 2, 3]],
    ]  # fmt: skip


def test_a_case_alone_leaves_the_process_as_it_was() -> None:
    before = torch.get_num_threads()
    assert alone(CensusCase("test", "good", _subject)).verdict == "answered"
    assert torch.get_num_threads() == before

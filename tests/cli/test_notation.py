"""Sets, partitions and targets as text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nrm.cli.notation import read_part, read_question, read_set, read_sets, read_target
from nrm.errors import InputError, QuestionError
from nrm.questions.values import Layer
from nrm.report.columns import Pick

a, b = Layer("features.26"), Layer("model.layers.0.self_attn.o_proj")

SETS = {
    "features.26.channel(12)": a.channel(12),
    " features.26.channel(3, 7) ": a.channel([3, 7]),
    "features.26.channel([3, 7])": a.channel([3, 7]),
    "features.26.all": a.all,
    "features.26.position((2, 3))": a.position((2, 3)),
    "features.26[3, 4:8, 4:8]": a[3, 4:8, 4:8],
    "features.26[..., -1]": a[..., -1],
    "features.26.channels[5]": a.channels[5],
    "model.layers.0.self_attn.o_proj.input.head(2)": b.input.head(2),
    "layer1.0.relu.skip.all": Layer("layer1.0.relu").skip.all,
    "lstm#3.step(80)": Layer("lstm#3").step(80),
    "lstm[1].channel(2)": Layer("lstm[1]").channel(2),
}

PARTS = {
    "features.26": Pick("features.26", "channels"),
    "features.26.channels": a.channels,
    "features.26.positions": a.positions,
    "features.26.channels[:8]": a.channels[:8],
    "features.26.channels[[3, 7]]": a.channels[[3, 7]],
    "features.26.clusters": Pick("features.26", "clusters"),
    "features.26.groups": Pick("features.26", "groups"),
    "features.26.channel(3)": a.channel(3),
    "model.layers.0.self_attn.o_proj.input.heads": b.input.heads,
    "lstm[1]": Pick("lstm[1]", "channels"),
}


@pytest.mark.parametrize("text", SETS)
def test_sets_are_those_of_python(text: str) -> None:
    assert read_set(text) == SETS[text]


@pytest.mark.parametrize("text", PARTS)
def test_divided_layers_are_those_of_python(text: str) -> None:
    assert read_part(text) == PARTS[text]


@pytest.mark.parametrize(
    "text", ["", "features.26", "features.26.channels", "a.channel(", "a.channel(x)", "a.channel(open('f'))", "a[1+x]"]
)
def test_what_is_no_set_is_refused(text: str) -> None:
    with pytest.raises((InputError, QuestionError)):
        read_set(text)


def test_questions_of_several_layers() -> None:
    assert read_question("features.26 x conv.positions") == (a.channels, Layer("conv").positions)
    assert read_question("features.26.channel(3)") == (a.channel(3),)


def test_named_sets_come_from_options_and_files(tmp_path: Path) -> None:
    lines, data = tmp_path / "sets.txt", tmp_path / "sets.json"
    lines.write_text(
        "# parts of a fish\n\nfin = features.26.channel(3)  # the upper one\nfin = features.26.channel(4)\n"
    )
    data.write_text(json.dumps({"fin": ["features.26.channel(3)", "features.26.channel(4)"], "eye": "conv.all"}))
    fins = [a.channel(3), a.channel(4)]
    assert read_sets([], lines) == {"fin": fins}
    assert read_sets(["net=conv.channel(1)"], data) == {
        "fin": fins, "eye": [Layer("conv").all], "net": [Layer("conv").channel(1)],
    }  # fmt: skip


def test_targets() -> None:
    names = {0: "tench", 207: "golden retriever"}
    assert read_target(None, names, False) is None
    assert read_target("softmax", names, False) == "softmax"
    assert read_target("207", names, False) == read_target("golden retriever", names, False) == 207
    assert read_target("7", None, tokens=True) == read_target("-1,7", None, tokens=True) == (-1, 7)
    with pytest.raises(InputError, match="no such class") as caught:
        read_target("retriever", names, False)
    assert caught.value.hint == "golden retriever"

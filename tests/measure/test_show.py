"""What a user sees in a terminal and in a notebook: complete, copyable, escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm

HOSTILE = "<script>alert('x')</script>&\""


class Reader(HTMLParser):
    """Collects the tags and the text, and complains about tags that do not match."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert not reader.open
    assert set(reader.tags) <= {"table", "thead", "tbody", "tr", "th", "td", "caption", "code", "small", "ul", "li"}
    return reader


class Inner(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x) + x)


def model() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential()
    net.add_module("<b>bold</b>", Inner())
    net.add_module("head", nn.Linear(3, 4))
    return net.double()


def x(batch: int = 2) -> Tensor:
    return torch.rand(batch, 3, generator=torch.Generator().manual_seed(1)).double()


@pytest.fixture
def R() -> nrm.Measure:
    return nrm.measure(model(), x(), target=[1, 2], labels={"output": ["a", HOSTILE, "c", "d"]})


# ---- the measure -----------------------------------------------------------------------------------------------------


def test_a_measure_shows_its_facts(R: nrm.Measure) -> None:
    text = repr(R)
    for line in (
        r"samples +2",
        r"input +input 3",
        r"explains +output 1 .*script.* = -?\d.*; output 2 'c' = -?\d",
        r"options +rules='lrp-0', bias='input', zero='sink', dtype=torch\.float64",
        r"check +not yet",
    ):
        assert re.search(line, text), f"{line}\n{text}"
    R(R.input)
    assert "trusted (light check)" in repr(R)
    assert read(R._repr_html_()).text.count("lrp-0") == 1


RULES = [
    "auto",
    "epsilon-plus",
    nrm.Gamma(0.25),
    nrm.AlphaBeta(2.0, 1.0),
    {"head": nrm.ZPlus()},
    {"head": nrm.Gamma(0.5), "*": "epsilon-plus"},
    {nn.Linear: nrm.WSquare(), "*/add": nrm.Sum({"skip": 1.0, "branch": 2.0})},
]


@pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_the_shown_options_can_be_copied(rules: Any) -> None:
    R = nrm.measure(model(), x(), target=0, rules=rules, zero="uniform")
    shown = re.search(r"options +(.*)", repr(R))
    assert shown is not None
    names = {name: getattr(nrm, name) for name in (*nrm.__all__, *nrm.SHORT)}
    again = nrm.measure(model(), x(), target=0, **eval(f"dict({shown[1]})", {**names, "nn": nn, "torch": torch}))
    assert torch.equal(R(R.input), again(again.input))
    assert shown[0] in repr(again)


def test_a_negative_output_is_said_in_words() -> None:
    outputs = model()(x(1)).detach()[0]
    for target in range(4):
        R = nrm.measure(model(), x(1), target=target)
        negative = bool(outputs[target] < 0)
        for text in (repr(R), read(R._repr_html_()).text, repr(R.check())):
            assert ("argues for the negative value" in text) == negative
    assert (outputs < 0).any()
    assert (outputs > 0).any()


def test_many_samples_are_shortened() -> None:
    R = nrm.measure(model(), x(9), target=0)
    assert repr(R).count("output 0") == 4
    assert "..." in repr(R)
    assert max(map(len, repr(R.layers).splitlines())) < 160


def test_other_targets_are_named() -> None:
    assert "explains  softmax = " in repr(nrm.measure(model(), x(), target="softmax"))
    scalar = nrm.measure(model(), x(), output=lambda o: o[:, 0])
    assert "explains  output = " in repr(scalar)
    assert "normalize=False" in repr(nrm.measure(model(), x(), normalize=False))


def test_labels_by_index() -> None:
    R = nrm.measure(model(), x(), target=2, labels={"output": {2: "two", 0: "zero"}})
    assert "output 2 'two'" in repr(R)
    assert R.labels["output"] == ("zero", "1", "two", "3")


def test_labels_are_in_errors(R: nrm.Measure) -> None:
    with pytest.raises(nrm.QuestionError, match=r"output 1 .*script"):
        R(R.output[0])


def test_one_sample_shows_itself(R: nrm.Measure) -> None:
    text = repr(R.sample(1))
    assert "number 1 of 2" in text
    assert "output 2 'c'" in text
    assert "output 1" not in text
    read(R.sample(1)._repr_html_())
    tokens = nrm.measure(model(), x(), labels={"input": [list("abc"), list("def")]})
    assert tokens.sample(1).labels["input"] == (("d", "e", "f"),)


# ---- everything else -------------------------------------------------------------------------------------------------


def test_the_layers(R: nrm.Measure) -> None:
    table = R.layers
    lines = repr(table).splitlines()
    assert len(lines) == len(table) + 1
    assert lines[0].split() == ["name", "shape", "channels", "kind", "cut", "mass"]
    assert table[0].name == "input"
    assert table[-1].is_cut
    html = read(table._repr_html_())
    assert html.tags.count("tr") == len(table) + 1
    assert "<b>bold</b>.linear" in html.text
    assert [row.name for row in table[:2]] == [row.name for row in table][:2]


def test_nothing_hostile_gets_through(R: nrm.Measure) -> None:
    inner = R["<b>bold</b>.linear"]
    hostile = nrm.layer(HOSTILE)
    shown = [R, R.layers, R.check(), R.sample(1), R.inputs, R.cut(inner), inner, inner.channel(0), inner.channels,
             hostile, hostile[0], hostile.channels, nrm.layer("a", HOSTILE)]  # fmt: skip
    for value in shown:
        html = value._repr_html_()
        assert "<script" not in html
        assert "<b>" not in html
        read(html)
    assert HOSTILE in read(R._repr_html_()).text.replace("\\'", "'").replace('\\"', '"')
    assert read(nrm.layer(HOSTILE)._repr_html_()).text.strip() == HOSTILE


def test_a_layer_tells_what_the_measure_knows(R: nrm.Measure) -> None:
    layer = R["head"]
    assert read(layer._repr_html_()).text.split() == ["head", "4,", "channels", "on", "axis", "0,", "linear"]
    assert read(nrm.layer("head")._repr_html_()).text.strip() == "head"
    assert repr(layer) == "nrm.layer('head')"
    assert "edge" in R.edge("input", "<b>bold</b>/add").facts
    assert "bias" in R["head.bias"].facts


def test_names_are_completed(R: nrm.Measure) -> None:
    names = R._ipython_key_completions_()
    assert names[0] == "input"
    assert {"head", "output", "<b>bold</b>", "<b>bold</b>.linear"} <= set(names)
    assert len(names) == len(set(names))
    for name in names:
        assert R(R[name]).shape[0] == 2
    cell = nn.Linear(2, 2)
    twice = nrm.measure(nn.Sequential(cell, nn.Tanh(), cell), torch.rand(1, 2))
    assert {"0#0", "0#1"} <= set(twice._ipython_key_completions_())


def test_completion_computes_nothing() -> None:
    R = nrm.measure(model(), x())
    R._ipython_key_completions_()
    repr(R)
    assert R.inner.kept._base is None


def test_cuts_show_their_parts(R: nrm.Measure) -> None:
    text = repr(R.cut("<b>bold</b>.linear"))
    assert text.startswith("cut through <b>bold</b>.linear: <b>bold</b>.linear, input -> <b>bold</b>/add")
    assert "head.bias" in text


def test_the_check_is_a_table(R: nrm.Measure) -> None:
    html = read(R.check()._repr_html_())
    assert "verdict" in html.text
    assert html.tags.count("tr") == len(repr(R.check()).splitlines())

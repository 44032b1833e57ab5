"""The numbers of a view are the measure's own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import nrm
import vision
from nrm.measure import asking
from nrm.plot.columns import read_flows
from nrm.report import View
from nrm.report.columns import default_picks
from nrm.report.pictures import unpack_map
from real import models, stories
from report import subjects

LAYERS = [("/relu#0", "channels"), ("pool#0", "channels"), ("pool#1", "channels"), ("output", "channels")]


def test_the_default_layers_go_along_the_network_and_end_at_the_output() -> None:
    R = subjects.measured()
    picks = default_picks(R)
    assert picks[-1].layer == "output"
    assert len(picks) >= 3
    bypassed = {row.name for row in R.layers if row.bypassed}
    assert "conv2" in bypassed
    assert not bypassed & {pick.layer for pick in picks}


@pytest.mark.parametrize("by", ["channels", "positions", "clusters", "groups"])
def test_columns_add_up_and_ribbons_are_joint_relevances(by: str) -> None:
    if by == "clusters":
        pytest.importorskip("sklearn")
    R = subjects.measured()
    view = View(R, layers=[("pool#0", by), ("pool#1", by), "output"], nodes=4)
    part = view.network()
    json.dumps(part, allow_nan=False)
    for column, shown in zip(part["columns"], view.columns, strict=True):
        shares = R(shown.partition)[0].flatten()
        assert sum(n["share"] for n in column["nodes"]) == pytest.approx(1, abs=1e-3)
        assert sum(n["height"] for n in column["nodes"]) == pytest.approx(1, abs=2e-3)
        for i, node in enumerate(column["nodes"]):
            if node["kind"] == "block":
                assert node["share"] == pytest.approx(float(shares[node["block"]]), abs=1e-6)
            event = shown.event(i)
            if event is not None:
                assert node["share"] == pytest.approx(float(R(event)), abs=1e-6)
    for c, (low, high) in enumerate(itertools.pairwise(view.columns)):
        for a, b in itertools.product(range(len(low.column.nodes)), range(len(high.column.nodes))):
            events = low.event(a), high.event(b)
            if None not in events:
                assert part["tables"][c][a][b] == pytest.approx(float(R(*events)), abs=1e-6)
        for a, node in enumerate(low.column.nodes):
            assert sum(part["tables"][c][a]) == pytest.approx(node.share, abs=1e-3)


def test_the_heat_map_is_the_measure_s() -> None:
    R = subjects.measured()
    heat = View(R).facts()["heat"]
    expected = R(R.input.positions)[0]
    torch.testing.assert_close(unpack_map(heat), expected, atol=heat["limit"] / 200, rtol=0)
    assert heat["total"] == pytest.approx(float(R(R.input.all)), abs=1e-6)


def test_a_selection_has_its_share_its_map_and_what_is_given() -> None:
    R = subjects.measured()
    view = View(R, layers=LAYERS, nodes=3)
    view.network()
    first, second = view.columns[0], view.columns[2]
    a, b = (next(i for i, n in enumerate(s.column.nodes) if n.kind == "block") for s in (first, second))
    found = view.selection([(0, a), (2, b)])
    events = first.event(a), second.event(b)
    joint = float(R(*events))
    assert found["share"] == pytest.approx(joint, abs=1e-7)
    assert [g["share"] for g in found["given"]] == pytest.approx([float(joint / R(e)) for e in events], abs=1e-5)
    heat = R(R.input.positions, *events)[0]
    torch.testing.assert_close(unpack_map(found["map"]), heat, atol=found["map"]["limit"] / 200, rtol=0)


def test_what_passes_elsewhere_is_the_complement() -> None:
    R = subjects.measured()
    view = View(R, layers=["conv2", "output"], nodes=3)
    view.network()
    place = next(i for i, n in enumerate(view.columns[0].column.nodes) if n.kind == "elsewhere")
    found = view.selection([(0, place), (1, 0)])
    assert found["share"] == pytest.approx(1 - float(R(R["conv2"].all)), abs=1e-5)


def test_the_flows_are_those_of_the_measure() -> None:
    R = subjects.measured()
    view = View(R, layers=LAYERS[1:], nodes=10, flows=4)
    view.network()
    part = view.flows()
    expected = R.flows(*(getattr(R[name], by) for name, by in LAYERS[1:]), k=4, sign="abs")[0]
    assert part["certified"]
    assert [f["share"] for f in part["flows"]] == pytest.approx([f.relevance for f in expected], abs=1e-6)


def test_the_decision_and_its_alternatives() -> None:
    R = subjects.measured(target=2)
    decision = View(R).facts()["decision"]
    assert decision["index"] == 2
    assert {a["name"] for a in decision["alternatives"]} == set(subjects.CLASSES)
    assert sum(a["probability"] for a in decision["alternatives"]) == pytest.approx(1)
    assert bool(decision["sign"]) == bool(R.value[0] < 0)


def test_the_script_gives_the_numbers_again() -> None:
    R = subjects.measured(target=1)
    view = View(R, layers=LAYERS, nodes=3)
    part = view.network()
    space = {"model": subjects.small(), "inputs": subjects.image()}
    text = part["script"].replace("R.report(", "again = R.report(").replace("'report.html', ", "")
    exec(text, space)
    torch.testing.assert_close(space["heat"], R(R.input.positions))
    assert space["again"].view["tables"] == part["tables"]
    shares = [n["share"] for n in part["columns"][0]["nodes"] if n["kind"] == "block"]
    assert space["marginal_0"].tolist() == pytest.approx(shares, abs=1e-6)


def test_tokens() -> None:
    R = subjects.read_tokens()
    view = View(R).whole()
    assert [t["text"] for t in view["picture"]["tokens"]] == ["the", "cat", "s", "at", "down"]
    torch.testing.assert_close(
        unpack_map(view["heat"]), R(R.input.positions)[0], atol=view["heat"]["limit"] / 200, rtol=0
    )
    assert view["columns"][0]["by"] == "positions"
    names = {node["text"] for column in view["columns"][:2] for node in column["nodes"] if node["kind"] == "block"}
    assert names == {"the", "cat", "s", "at", "down"}


def test_a_view_is_about_one_sample_and_existing_layers() -> None:
    R = nrm.measure(subjects.small(), torch.cat([subjects.image(0), subjects.image(1)]))
    with pytest.raises(nrm.QuestionError, match="one sample"):
        View(R)
    assert View(R.sample(1)).facts()["heat"]["total"] == pytest.approx(float(R(R.input.all)[1]), abs=1e-6)
    one = R.sample(0)
    with pytest.raises(nrm.QuestionError, match="two layers"):
        View(one, layers=["conv1"]).network()
    with pytest.raises(nrm.QuestionError, match="way to divide"):
        View(one, layers=[("conv1", "magic"), "output"]).network()
    with pytest.raises(nrm.QuestionError, match="twice"):
        View(one, layers=["conv1", "conv1"]).network()
    with pytest.raises(nrm.NrmError):
        View(one, layers=["nothing", "output"]).network()


def test_a_flat_input_is_drawn_over_a_picture_of_it() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    R = nrm.measure(model, torch.rand(1, 16))
    facts = View(R, image=torch.rand(4, 4)).facts()
    assert facts["picture"]["kind"] == "image"
    assert facts["heat"]["shape"] == [4, 4]
    with pytest.raises(nrm.QuestionError, match="does not fit"):
        View(R, image=torch.rand(5, 4))


def assert_whole(part: dict[str, Any]) -> None:
    for column in part["columns"]:
        assert sum(n["share"] for n in column["nodes"]) == pytest.approx(1, abs=2e-3)


@pytest.mark.data
@pytest.mark.slow
def test_vgg16_on_a_photo(shared: Callable[[str], Path]) -> None:
    pytest.importorskip("sklearn")
    photos = sorted(shared("imagenette").glob("val/*/*"))
    model = models.load("VGG16-Imagenette", shared("vgg16-imagenette").parent)
    R = nrm.measure(model, models.photo(photos[5])[None], labels={"output": models.IMAGENETTE})
    assert [pick.layer for pick in default_picks(R)] == ["features.4", "features.9", "features.16", "avgpool", "output"]
    view = View(R, layers=[("features.29", "channels"), ("features.30", "clusters"), "output"], flows=2)
    part = {**view.facts(), **view.network(), **view.flows()}
    assert part["decision"]["alternatives"][0]["name"] == "tench"
    assert_whole(part)
    assert len(part["flows"]) == 2


@pytest.mark.data
@pytest.mark.slow
def test_resnet18_has_a_column_for_every_stage(shared: Callable[[str], Path]) -> None:
    pytest.importorskip("sklearn")
    model = models.load("ResNet18-CIFAR10", shared("resnet18-cifar10").parent)
    view = View(nrm.measure(model, torch.rand(1, 3, 32, 32), labels={"output": models.CIFAR}))
    assert [s.pick.layer for s in view.columns] == ["layer1.1", "layer2.1", "layer3.1", "layer4.1", "output"]
    assert_whole(view.network())


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_stories_by_tokens_and_heads(shared: Callable[[str], Path]) -> None:
    pytest.importorskip("transformers")
    vision.load()  # which transformers imports
    home = shared("stories15M")
    tokenizer = stories.Tokenizer(home / "tokenizer.bin")
    R = nrm.measure(stories.load_stories(home), {"input_ids": tokenizer.batch(stories.PROMPTS[2])})
    assert_whole(View(R).network())
    heads = [layer.input.heads for layer in R.find("*.self_attn.o_proj")][-2:]
    view = View(R, layers=[R.input.positions, *heads, R.output.channels])
    part = {**view.facts(), **view.network(), **view.flows()}
    assert [column["by"] for column in part["columns"]] == ["positions", "heads", "heads", "channels"]
    assert_whole(part)


def test_a_layer_that_almost_nothing_passes_is_shown_all_the_same() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 6, 3), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(96, 3),
    ).eval()  # fmt: skip
    with torch.no_grad():
        model[2].weight.mul_(1e-9)
        model[2].bias.fill_(1.0)  # which has it all
    R = nrm.measure(model, torch.rand(1, 1, 8, 8), rules="lrp-0", bias="input")
    view = View(R, layers=["1", "3", "output"]).whole()
    assert [node["kind"] for node in view["columns"][0]["nodes"]] == ["rest", "elsewhere"]


def test_the_picture_of_flows_asks_nothing_that_the_view_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    R = subjects.measured()
    view = View(R, layers=["pool#0", "pool#1", "output"], nodes=12)  # all blocks, so that there is no rest
    view.network()
    expected = read_flows(R, [shown.partition for shown in view.columns], view.choice, None, None)
    asked: list[Any] = []
    answer = asking.answer
    monkeypatch.setattr(asking, "answer", lambda *given: (asked.append(given), answer(*given))[1])
    found = view.drawn()
    assert not asked
    assert [column.nodes for column in found.columns] == [column.nodes for column in expected.columns]
    for one, other in zip(found.ribbons, expected.ribbons, strict=True):
        assert one[:3] == other[:3]
        assert (one.share, *one.widths) == pytest.approx((other.share, *other.widths), abs=1e-6)
    assert View(R, layers=["pool#0", "output"]).drawn().ribbons  # also where nothing is known yet

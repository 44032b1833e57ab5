"""Flow pictures: columns add up to 100 %, ribbons fill their nodes, signs have their hues, nothing is hidden."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import assume, given, strategies as st
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.transforms import Bbox
from torch import Tensor, nn

import nrm
from nrm.errors import QuestionError
from nrm.plot import flows
from nrm.plot.columns import FlowPicture, NodeChoice, crossings, make_flows, needed, stack, untangle, with_elsewhere
from nrm.plot.flow import BODY


def dense(rules: str = "lrp-0", batch: int = 2, **options: Any) -> nrm.Measure:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5))
    return nrm.measure(model.eval(), torch.rand(batch, 9), rules=rules, **options)


def nodes_of(ax: Axes) -> dict[tuple[int, str], Rectangle]:
    found = [p for p in ax.patches if isinstance(p, Rectangle) and str(p.get_gid()).startswith("node")]
    return {(int(str(p.get_gid()).split()[1]), str(p.get_gid()).split()[2]): p for p in found}


def ribbons_of(ax: Axes) -> dict[tuple[int, str, str, str], PathPatch]:
    found = {}
    for patch in ax.patches:
        if isinstance(patch, PathPatch):
            _, column, low, high, sign = str(patch.get_gid()).split()
            found[int(column), low, high, sign] = patch
    return found


def widths(patch: PathPatch) -> tuple[float, float]:
    """The width of a ribbon at its left and right end, as it was drawn."""
    y = np.asarray(patch.get_path().vertices)[:, 1]
    return float(y[7] - y[0]), float(y[4] - y[3])


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def assert_whole(ax: Axes, tolerance: float = 0.01) -> None:
    """Columns add up to 100 %, and the ribbons of every node fill it on both sides."""
    nodes, ribbons = nodes_of(ax), ribbons_of(ax)
    last = max(column for column, _ in nodes)
    for column in range(last + 1):
        heights = {key: box.get_height() for (c, key), box in nodes.items() if c == column}
        assert sum(heights.values()) == pytest.approx(BODY, abs=1e-6)
        for key, height in heights.items():
            out = sum(widths(p)[0] for (c, low, _, _), p in ribbons.items() if (c, low) == (column, key))
            into = sum(widths(p)[1] for (c, _, high, _), p in ribbons.items() if (c + 1, high) == (column, key))
            assert out == pytest.approx(height if column < last else 0, abs=tolerance * BODY)
            assert into == pytest.approx(height if column > 0 else 0, abs=tolerance * BODY)


# What is drawn


@pytest.mark.parametrize("rules", ["lrp-0", "epsilon-plus", "epsilon-alpha2-beta1"])
@pytest.mark.parametrize("sample", [0, 1])
def test_columns_add_up_and_ribbons_fill_their_nodes(rules: str, sample: int) -> None:
    R = dense(rules)
    assert_whole(flows(R, R.input, R["1"].channels, R["3"].channels, R.output, sample=sample, nodes=5))


def test_heights_are_the_relevances_where_nothing_is_negative() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5))
    for parameter in model.parameters():
        parameter.data.abs_()
    R = nrm.measure(model, torch.rand(2, 9), rules="lrp-0", bias="ignore")
    a, b = R["1"].channels, R["3"].channels
    ax = flows(R, a, b, sample=1, nodes=6)
    share, pairs = [R(a)[1], R(b)[1]], R(a, b)[1]
    for (column, key), box in nodes_of(ax).items():
        if key != "rest":
            assert box.get_height() == pytest.approx(BODY * float(share[column][int(key)]), rel=1e-4)
    for (_, low, high, sign), patch in ribbons_of(ax).items():
        assert sign == "+"
        if "rest" not in (low, high):
            wanted = BODY * float(pairs[int(low), int(high)])
            np.testing.assert_allclose(widths(patch), wanted, rtol=1e-3)
    assert not any("Σ|R|" in text for text in texts(ax))


def test_the_strongest_blocks_are_nodes_and_the_rest_is_one_grey_node() -> None:
    R = dense()
    a, b = R["1"].channels, R["3"].channels
    ax = flows(R, a, b, nodes=3)
    for column, part in enumerate((a, b)):
        share = R(part)[0]
        strongest = {str(i) for i in share.abs().topk(3).indices.tolist()}
        mine = {key for c, key in nodes_of(ax) if c == column}
        assert mine - {"elsewhere"} == strongest | {"rest"}
        box = nodes_of(ax)[column, "rest"]
        hidden = share.abs().sum() - share.abs().topk(3).values.sum()
        rest = 1 - float(share.sum())
        total = float(share.abs().sum()) + (abs(rest) if abs(rest) >= 0.0005 else 0)
        assert box.get_height() == pytest.approx(BODY * float(hidden) / total, rel=1e-4)
        red, green, blue, _ = box.get_facecolor()
        assert red == green == blue
    assert "rest (17)" in texts(ax)
    assert "rest (13)" in texts(ax)


def test_signs_have_two_hues_and_the_numbers_are_net() -> None:
    R = dense("lrp-0", batch=4)
    sample = next(i for i in range(4) if bool((R(R["3"].channels)[i] < -0.01).any()))
    b = R["3"].channels
    ax = flows(R, R["1"].channels, b, sample=sample, nodes=20)
    share = R(b)[sample]
    for (column, key), box in nodes_of(ax).items():
        if column == 1 and key.isdigit():
            red, _, blue, _ = box.get_facecolor()
            assert (red > blue) == bool(share[int(key)] > 0)
    for (_, _, _, sign), patch in ribbons_of(ax).items():
        red, _, blue, _ = patch.get_facecolor()
        assert (red > blue) == (sign == "+")
    assert any("\N{MINUS SIGN}" in text and text.endswith(" %") for text in texts(ax))
    assert any("Σ|R|" in text for text in texts(ax))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["for", "against"]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.relu1, self.relu2, self.head = nn.ReLU(), nn.ReLU(), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu1(self.stem(x))
        h = self.relu2(self.conv(h) + h)
        return self.head(h.mean((2, 3)))


def test_what_passes_a_layer_by_is_shown_as_elsewhere() -> None:
    torch.manual_seed(1)
    R = nrm.measure(Residual().eval(), torch.rand(1, 3, 8, 8), rules="epsilon-plus", bias="ignore")
    ax = flows(R, R["relu1"].channels, R["conv"].channels, R["relu2"].channels, nodes=5)
    assert_whole(ax)
    share = R(R["conv"].channels)[0]
    missing = 1 - float(share.sum())
    assert missing > 0.01
    box = nodes_of(ax)[1, "elsewhere"]
    assert box.get_height() == pytest.approx(BODY * missing / (float(share.abs().sum()) + missing), rel=1e-4)
    assert (0, "elsewhere") not in nodes_of(ax)
    some = flows(R, R["relu1"].channels[[0, 1, 2]], R["relu2"].channels)  # what a partition leaves out is elsewhere too
    assert (0, "elsewhere") in nodes_of(some)
    edge = flows(R, R["relu1"].channels, R["relu2"].skip.channels, R["relu2"].channels)
    assert_whole(edge)


def test_columns_go_from_input_to_output_whatever_the_order() -> None:
    R = dense()
    a, b, c = R.input, R["1"].channels, R["3"].channels
    forward, backward = flows(R, a, b, c, columns=["A", "B", "C"]), flows(R, c, a, b, columns=["C", "A", "B"])
    assert texts(forward) == texts(backward)
    place = {t.get_text(): t.get_position()[0] for t in backward.texts}
    assert place["A"] < place["B"] < place["C"]


def test_coverage_takes_only_as_many_nodes_as_it_needs() -> None:
    R = dense()
    a, b = R["1"].channels, R["3"].channels
    share = R(a)[0].abs()
    few = [key for column, key in nodes_of(flows(R, a, b, coverage=0.3)) if column == 0 and key.isdigit()]
    most = share.sort(descending=True).values.cumsum(0) / share.sum()
    assert len(few) == int((most < 0.3).sum()) + 1
    many = [key for column, key in nodes_of(flows(R, a, b, coverage=1.0, nodes=4)) if column == 0 and key.isdigit()]
    assert len(many) == 4


def test_clusters_groups_and_positions_are_drawn() -> None:
    pytest.importorskip("sklearn")
    torch.manual_seed(0)
    R = nrm.measure(Residual().eval(), torch.rand(2, 3, 8, 8), rules="epsilon-plus", bias="ignore")
    low, high = nrm.coarsen(R, R["relu1"].channels, R["relu2"].channels, k=3)
    for first in (nrm.cluster(R, R.input, k=4), R.input.positions):
        ax = flows(R, first, low, high, R.output, sample=1)
        assert_whole(ax)
    assert any(text.startswith("64 positions") for text in texts(ax))
    assert any(text.startswith("3 groups") for text in texts(ax))
    assert any(text.count(", ") == 1 for text in texts(ax))  # a position has two indices
    torch.testing.assert_close(R(low, high).sum((1, 2)), torch.ones(2))


def test_the_title_says_what_was_predicted_and_explained() -> None:
    names = {"output": [f"class {i}" for i in range(5)]}
    R = dense(labels=names)
    predicted = int(R.prediction[1])
    ax = flows(R, R["1"].channels, R.output, sample=1)
    assert f"predicted and explained: class {predicted} (output {predicted})" in ax.get_title()
    assert "(sample 1)" in ax.get_title()
    assert f"class {predicted}" in texts(ax)
    other = (predicted + 1) % 5
    ax = flows(dense(labels=names, target=other).sample(1), R["1"].channels, R["3"].channels)
    assert f"explained: class {other} (output {other})" in ax.get_title()
    assert f"predicted: class {predicted} (output {predicted})" in ax.get_title().replace("\n", " ")
    assert "explained: softmax" in flows(dense(target="softmax"), R["1"].channels, R["3"].channels).get_title()
    assert flows(R, R["1"].channels, R["3"].channels, title="mine").get_title() == "mine"
    assert flows(R, R["1"].channels, R["3"].channels, title="").get_title() == ""


def test_shares_of_a_negative_output_are_noted() -> None:
    R = dense(bias="input")
    with torch.no_grad():
        values = R.values(R.output)
    target = int(values[0].argmin())
    assert values[0, target] < 0
    S = dense(bias="input", target=target)
    assert any("negative output" in text for text in texts(flows(S, S["1"].channels, S["3"].channels)))


def test_names_are_the_users() -> None:
    R = dense()
    some = R(R["3"].channels)[0].abs().topk(2).indices.tolist()
    ax = flows(R, R["1"].channels, R["3"].channels[some], names=[[f"n{i}" for i in range(20)], None])
    assert {text for text in texts(ax) if text.startswith("n")} <= {f"n{i}" for i in range(20)}
    assert set(map(str, some)) <= set(texts(ax))
    long = flows(R, R["1"].channels, R["3"].channels, names=[["a very long name that goes on"] * 20, None])
    assert "a very long name that…" in texts(long)


# How it looks


@pytest.mark.parametrize("nodes", [5, 8, 10])
@pytest.mark.parametrize("rules", ["lrp-0", "epsilon-plus"])
def test_no_text_overlaps_another_and_all_are_on_the_page(nodes: int, rules: str) -> None:
    R = dense(rules, labels={"output": [f"a class named {i}" for i in range(5)]}, target="softmax")
    ax = flows(R, R.input, R["1"].channels, R["3"].channels, R.output, nodes=nodes)
    figure = ax.figure
    figure.canvas.draw()
    boxes = [t.get_window_extent() for t in [*ax.texts, ax.title, *ax.get_legend().get_texts()] if t.get_text()]
    page = figure.bbox
    for box in boxes:
        assert page.x0 <= box.x0
        assert box.x1 <= page.x1
        assert page.y0 <= box.y0
        assert box.y1 <= page.y1
    for one, two in itertools.combinations(boxes, 2):
        overlap = Bbox.intersection(one, two)
        assert overlap is None or min(overlap.width, overlap.height) < 2.5  # the line's own spacing


def test_the_given_axes_are_used_and_files_are_written() -> None:
    R = dense()
    figure, axes = plt.subplots(1, 2, figsize=(13, 5))
    assert flows(R, R["1"].channels, R["3"].channels, ax=axes[1]) is axes[1]
    assert not axes[0].patches
    heights = [box.get_height() for (column, _), box in nodes_of(axes[1]).items() if column == 0]
    low, high = sorted(axes[1].get_ylim())
    assert 0.4 * (high - low) < sum(heights) <= high - low
    for kind in ("png", "svg", "pdf"):
        with io.BytesIO() as file:
            figure.savefig(file, format=kind)
            assert len(file.getvalue()) > 5000
    before = dict(mpl.rcParams)
    flows(R, R["1"].channels, R["3"].channels)
    assert dict(mpl.rcParams) == before


# The layout by itself


@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from([1.0, 3.8]))
def test_stacked_nodes_keep_their_distance(seed: int, count: int, body: float) -> None:
    heights = np.random.default_rng(seed).dirichlet(np.full(count, 0.3)).tolist()
    room = needed(heights, body, 0.17, 0.07) + seed % 3
    tops = stack(heights, body, 0.17, 0.07, room)
    assert tops[0] >= -1e-9
    assert tops[-1] + body * heights[-1] <= room + 1e-9
    for (a, top), (b, below) in itertools.pairwise(zip(heights, tops, strict=True)):
        assert below - top - body * a >= 0.07 - 1e-9
        assert below + body * b / 2 - top - body * a / 2 >= 0.17 - 1e-9  # room for a line of text each


def slow_crossings(table: np.ndarray) -> float:
    n, m = table.shape
    return sum(
        float(table[i, j] * table[k, q]) for i in range(n) for k in range(i + 1, n) for j in range(m) for q in range(j)
    )


@given(st.integers(0, 10**6))
def test_untangling_never_makes_more_crossings_and_keeps_the_bottom(seed: int) -> None:
    random = np.random.default_rng(seed)
    tables = [random.random((5, 6)) ** 4, random.random((6, 4)) ** 4]
    plain = [list(range(n)) for n in (5, 6, 4)]
    assert crossings(tables, plain) == pytest.approx(sum(map(slow_crossings, tables)))
    orders = untangle(tables, [4, 4, 4])
    assert [sorted(order) for order in orders] == plain
    assert orders[0][4:] == [4]
    assert orders[1][4:] == [4, 5]
    assert crossings(tables, orders) <= crossings(tables, plain) + 1e-12


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_any_signed_tables_make_whole_columns(seed: int, nodes: int) -> None:
    random = np.random.default_rng(seed)
    sizes = (7, 5, 6)
    shares = [random.choice([-1, 1], n) * (0.3 + np.abs(random.normal(size=n))) for n in sizes]
    # A share near 0 has no node: nothing is drawn of what flows through it in both signs.
    assume(all(abs(1 - share.sum()) >= 0.3 for share in shares))
    tables = [with_elsewhere(random.normal(size=(len(a), len(b))), a, b) for a, b in itertools.pairwise(shares)]
    read: FlowPicture = make_flows(
        shares, tables, [[str(i) for i in range(n)] for n in sizes], [("a", "b")] * 3, NodeChoice(nodes, None)
    )
    for c, column in enumerate(read.columns):
        assert sum(node.height for node in column.nodes) == pytest.approx(1)
        assert sum(node.share for node in column.nodes) == pytest.approx(1)
        for i, node in enumerate(column.nodes):
            out = [r for r in read.ribbons if (r.column, r.source) == (c, i)]
            into = [r for r in read.ribbons if (r.column + 1, r.target) == (c, i)]
            assert not out or sum(r.widths[0] for r in out) == pytest.approx(node.height, abs=0.01)
            assert not into or sum(r.widths[1] for r in into) == pytest.approx(node.height, abs=0.01)
            thin = 0.01 / node.height * sum(abs(r.share) for r in out)  # the share of what is too thin to be drawn
            assert not out or sum(r.share for r in out) == pytest.approx(node.share, abs=thin)


# Bad input

BAD: dict[str, tuple[Callable[[nrm.Measure], Any], str, str]] = {
    "one": (lambda R: flows(R, R["1"].channels), "a flow needs two layers", "1"),
    "event": (lambda R: flows(R, R["1"].channels, R["3"].channel(0)), "not a partition", "channel(0)"),
    "name": (lambda R: flows(R, "1", "3"), "not a partition", "'1'"),
    "twice": (lambda R: flows(R, R["1"].channels, R["1"]), "given twice", "1.channels"),
    "nodes": (lambda R: flows(R, R["1"].channels, R["3"].channels, nodes=0), "number of nodes", "nodes=0"),
    "coverage": (lambda R: flows(R, R["1"].channels, R["3"].channels, coverage=2), "coverage is out", "coverage=2"),
    "sample": (lambda R: flows(R, R["1"].channels, R["3"].channels, sample=7), "no such sample", "7"),
    "names": (lambda R: flows(R, R["1"].channels, R["3"].channels, names=[None]), "names does not fit", "1 entries"),
    "few names": (lambda R: flows(R, R["1"].channels, R["3"].channels, names=[["a"], None]), "do not fit", "1 names"),
    "columns": (lambda R: flows(R, R["1"].channels, R["3"].channels, columns=["a"]), "columns does not", "1 entries"),
    "ax": (lambda R: flows(R, R["1"].channels, R["3"].channels, ax=3), "not one matplotlib axes", "int"),
    "layer": (lambda R: flows(R, R["1"].channels, nrm.layer("conv9").channels), "conv9", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_has_a_clear_text_and_leaves_no_figure(case: str) -> None:
    draw, what, got = BAD[case]
    with pytest.raises(QuestionError, match=what) as caught:
        draw(dense())
    assert got in str(caught.value)
    assert caught.value.where == "nrm.plot.flows"
    assert plt.get_fignums() == []


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_an_unnormalized_measure_has_no_shares() -> None:
    R = dense(normalize=False)
    with pytest.raises(QuestionError, match="need a normalized measure"):
        flows(R, R["1"].channels, R["3"].channels)

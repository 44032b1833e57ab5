"""Everything that people receive shows itself, and becomes a table of pandas and xarray with names and labels."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
import xarray
from torch import nn

import nrm
from nrm.extras import MissingExtraError
from nrm.tables import Results, html_table

ROOMS = (
    "nrm", "nrm.measure", "nrm.search", "nrm.jobs", "nrm.evaluate", "nrm.methods", "nrm.questions", "nrm.plot",
    "nrm.report", "nrm.results", "nrm.compat.captum", "nrm.compat.crp", "nrm.compat.metrics",
)  # fmt: skip
FEATURES, CLASSES = ["age", "bmi", "<b>sex</b>"], ["ill", "well"]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).double().eval()


def inputs(batch: int = 2) -> torch.Tensor:
    return torch.rand(batch, 3, generator=torch.Generator().manual_seed(1)).double()


def measured(batch: int = 2) -> nrm.Measure:
    return nrm.measure(
        network(), inputs(batch), rules="lrp-0", target=[0, 1][:batch], labels={"input": FEATURES, "output": CLASSES}
    )


def streamed() -> Any:
    batches = [(inputs(4), torch.tensor([0, 1, 1, 0]))] * 2
    question = {"hidden": nrm.layer("1").channels}
    options: dict[str, Any] = {"rules": "lrp-0", "labels": {"output": CLASSES}, "progress": False}
    return nrm.stream(network(), batches, question, target="label", **options)


def ranked(**options: Any) -> Any:
    return nrm.relmax(network(), inputs(9), nrm.layer("1").channels, k=3, rules="lrp-0", progress=False, **options)


def compared() -> Any:
    R = measured()
    return nrm.evaluate.compare(R, R["1"].channels, R["3"].channels)


def coarsened() -> Any:
    R = measured()
    return nrm.coarsen(R, R["1"].channels, R["3"].channels, k=2)


def saved(tmp_path: Path) -> Results:
    R = measured()
    nrm.save(tmp_path / "r", measure=R, pairs=R.table(R.input, R["1"].channels[[4, 2]]))
    return nrm.load(tmp_path / "r")


def best_samples() -> Any:
    return nrm.methods.relmax(network(), inputs(9), nrm.layer("1").channels, k=3, rules="lrp-0", progress=False)


TABLES: dict[str, Callable[[], Any]] = {
    "answer": lambda: (lambda R: R.table(R.input, R["1"].channels))(measured()),
    "neurons of a formula": lambda: (lambda R: R.table(R.input, nrm.visits(R["1"].channel(2))))(measured()),
    "conditional": lambda: (lambda R: R.table(R.input, given=R["1"].channels))(measured()),
    "one number": lambda: (lambda R: R.table(R.input[0]))(measured()),
    "stack": lambda: (lambda R: R.table(nrm.stack(R.input.channels, R["1"].channels), R["3"].channels))(measured()),
    "difference": lambda: (lambda D: D.table(D.input))(measured() - measured()),
    "sample": lambda: (lambda R: R.table(R.input))(measured().sample(1)),
    "flows": lambda: (lambda R: R.flows(R.input.channels, R["3"].channels, k=3))(measured()),
    "greedy flows": lambda: (lambda R: R.flows(R.input, R["3"].channels, k=2, method="greedy"))(measured()),
    "flows of a difference": lambda: (lambda D: D.flows(D.input.channels, D["3"].channels, k=3))(
        measured() - nrm.measure(network(), 2 * inputs(), rules="lrp-0")
    ),
    "walks": lambda: measured().walks(k=3),
    "check": lambda: measured().check(),
    "light check": lambda: (lambda R: (R(R.input), R.inner.light)[1])(measured()),
    "layers": lambda: measured().layers,
    "plan": lambda: (lambda R: R.plan(R.input, R["1"].channels))(measured()),
    "plan of a formula": lambda: (lambda R: R.plan(~nrm.visits(R["1"].channel(2))))(measured()),
    "plan of a difference": lambda: (lambda D: D.plan(D.input, D["1"].channels))(measured() - measured()),
    "stream": streamed,
    "ranking": ranked,
    "hits": lambda: ranked().top(nrm.layer("1").channel(2)),
    "best blocks": lambda: ranked().best(),
    "comparison": compared,
    "coarsening": coarsened,
    "maxima": best_samples,
}  # fmt: skip
OTHERS: dict[str, Callable[[], Any]] = {
    "measure": measured,
    "sample's measure": lambda: measured().sample(0),
    "difference": lambda: measured() - measured(),
    "cut": lambda: measured().inputs,
    "layer": lambda: measured()["1"],
    "set": lambda: measured()["1"].channel(2),
    "partition": lambda: measured()["1"].channels,
    "formula": lambda: ~nrm.visits(measured()["1"].channel(2)),
    "one walk": lambda: measured().walks(k=1)[0][0],
    "one step": lambda: measured().walks(k=1)[0][0].steps[0],
    "one flow": lambda: (lambda R: R.flows(R.input, k=1)[0][0])(measured()),
    "agreement": lambda: compared()["nrm"],
    "hit": lambda: ranked().top(nrm.layer("1").channel(2))[0],
    "layer row": lambda: measured().layers[0],
    "report": lambda: measured().sample(0).report(),
    "correlation": nrm.evaluate.Correlation,
    "top sums": lambda: nrm.evaluate.TopSums(3),
    "rules": lambda: nrm.composite("epsilon-plus"),
}


class Reader(HTMLParser):
    """Complains about tags that do not match, and about those that nobody wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag in {"table", "thead", "tbody", "tr", "th", "td", "caption"}, tag
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", [*TABLES, *OTHERS])
def test_nothing_shows_itself_as_an_object_at_an_address(name: str) -> None:
    found = {**TABLES, **OTHERS}[name]()
    for text in (repr(found), str(found)):
        assert " object at 0x" not in text
        assert text


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_class_has_a_text_of_its_own(room: str) -> None:
    module = importlib.import_module(room)
    for name in getattr(module, "__all__", vars(module)):
        found = getattr(module, name)
        ours = inspect.isclass(found) and found.__module__.startswith("nrm") and not name.startswith("_")
        if ours and not inspect.isabstract(found) and not getattr(found, "_is_protocol", False):
            assert found.__repr__ is not object.__repr__, f"{room}.{name} prints its address"


@pytest.mark.parametrize("name", TABLES)
def test_every_result_is_a_table_of_pandas_and_xarray_and_of_a_notebook(name: str) -> None:
    found = TABLES[name]()
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) > 0
    data = found.to_xarray()
    assert isinstance(data, xarray.Dataset)
    assert data.data_vars
    reader = Reader()
    reader.feed(found._repr_html_())
    reader.close()
    assert not reader.open


def test_answers_keep_their_numbers_names_and_labels() -> None:
    R = measured()
    a = R["1"]
    table = R.table(R.input, a.channels[[4, 2]])
    answer = R(R.input, a.channels[[4, 2]])
    frame, data = table.to_pandas(), table.to_xarray()
    assert frame.index.names == ["sample", "input", "1.channels[[4, 2]]"]
    for s in range(2):
        for i in range(3):
            for n, c in enumerate((4, 2)):
                row = frame.loc[(s, i, c)]
                assert row["relevance"] == float(answer[s, i, n])
                assert row["input label"] == FEATURES[i]
                value = data["relevance"].sel({"sample": s, "input": i, "1.channels[[4, 2]]": c})
                assert float(value) == float(answer[s, i, n])
    assert data["input label"].values.tolist() == FEATURES
    assert "input 1 'bmi'" in repr(table)
    pandas.testing.assert_frame_equal(data.to_dataframe()[frame.columns], frame)


def test_tokens_of_every_sample_are_labels_of_its_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2)).double()
    words = (("the", "old", "sea"), ("a", "new", "sky"))
    R = nrm.measure(model, torch.randint(9, (2, 3)), rules="lrp-0", labels={"0": words})
    table = R.table(R["0"].positions)
    frame = table.to_pandas()
    assert frame["0.positions label"].tolist() == [word for row in words for word in row]
    assert table.to_xarray()["0.positions label"].dims == ("sample", "0.positions")
    assert R.sample(1).table(R["0"].positions).to_pandas()["0.positions label"].tolist() == list(words[1])
    best = R.flows(R["0"].positions, k=1)
    for sample in range(2):
        flow = best[sample][0]
        assert flow.labels == (words[sample][flow.blocks[0][1]],)
        assert repr(flow.labels[0]) in str(flow)
    neurons = R.table(R["0"])  # positions by channels: the names are along the first
    assert neurons.axes["relevance"] == ("sample", "0 axis 0", "0 axis 1")
    assert set(neurons.labels) == {"0 axis 0"}


class Text(nn.Module):
    """Words and their places, added up."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(9, 4), nn.Embedding(6, 4), nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        tokens = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        out: torch.Tensor = self.head(tokens.relu().mean(1))
        return out


def test_tokens_with_all_their_embeddings_have_the_names_of_the_input() -> None:
    torch.manual_seed(0)
    words = [["the", "sea", "sea"], ["an", "old", "sky"]]
    R = nrm.measure(Text().double(), torch.tensor([[3, 1, 1], [2, 4, 5]]), rules="lrp-0", labels={"input": words})
    frame = R.table(R.tokens).to_pandas()
    assert frame.iloc[:, 0].tolist() == [word for row in words for word in row]
    flow = R.flows(R.tokens, k=1, sign="abs")[1][0]
    assert flow.labels == (words[1][flow.blocks[0][1]],)


def test_names_that_fit_two_axes_are_positions_of_an_input_and_classes_of_an_output() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 3).double()
    R = nrm.measure(
        model, torch.rand(1, 3, 3).double(), target=(0, 1), rules="lrp-0",
        labels={"input": ["x", "y", "z"], "output": ["p", "q", "r"]},
    )  # fmt: skip
    assert "input.positions" in R.table(R.input.positions).labels
    assert not R.table(R.input.channels).labels
    assert "output.channels" in R.table(R.output.channels).labels
    assert not R.table(R.output.positions).labels


def test_flows_and_walks_say_the_names_of_their_blocks() -> None:
    R = measured()
    flow = R.flows(R.input.channels, R["3"].channels, R["4"].channels, k=1)[1][0]
    number = dict(flow.blocks)["input.channels"]
    assert f"input.channel({number}) {FEATURES[number]!r}" in str(flow)
    assert "4.channel(1) 'well'" in str(flow)  # the output by the name of its module
    record = R.flows(R.input.channels, R["3"].channels, k=1).records()[0]
    assert record["input.channels label"] == FEATURES[record["input.channels"]]
    fixed = R.flows(R.input.channel(1), R["3"].channels, k=1)[0][0]
    assert "input.channel(1) 'bmi'" in str(fixed)
    walks = R.walks(k=2)
    assert "output[0] 'ill' <- " in str(walks[0][0])
    assert float(R(*walks[0][0])) == pytest.approx(walks[0][0].relevance)
    D = measured() - nrm.measure(network(), 2 * inputs(), rules="lrp-0")
    assert any(repr(name) in str(D.flows(D.input.channels, k=1)) for name in FEATURES)


def test_columns_of_ones_own_share_the_axes_of_the_question() -> None:
    R = measured()
    a = R["1"]
    table = R.table(R.input, a.channels, relevance=R(R.input, a.channels), again=2 * R(R.input, a.channels))
    frame = table.to_pandas()
    np.testing.assert_allclose(frame["again"], 2 * frame["relevance"])
    assert list(R.table(a.channels, additive=R.additive(a.channels)).to_xarray().data_vars) == ["additive"]
    A, B = R.input[0], a.channel([1, 2])
    dividends = R.dividends(A, B)
    frame = R.table(A, B, dividends=dividends).to_pandas()
    assert frame.loc[(1, 1, 0), "dividends"] == float(dividends[1, 1, 0])
    assert frame[f"{A} label"].tolist()[:4] == ["avoided", "avoided", "visited", "visited"]
    with pytest.raises(nrm.QuestionError, match="'wrong' does not fit"):
        R.table(a.channels, wrong=torch.zeros(2, 5))
    with pytest.raises(nrm.QuestionError, match="does not fit"):
        R.table(a.channels, wrong=3.0)  # type: ignore[arg-type]


def test_tables_are_saved_with_their_labels(tmp_path: Path) -> None:
    loaded, R = saved(tmp_path), measured()
    table = R.table(R.input, R["1"].channels[[4, 2]])
    expected = table.to_pandas().rename(columns={"relevance": "pairs"})
    pandas.testing.assert_frame_equal(loaded.to_pandas(), expected)
    assert loaded.labels == table.labels
    assert loaded.numbers == table.numbers
    with pytest.raises(nrm.QuestionError, match="several tensors"):
        nrm.save(tmp_path / "x", two=R.table(R.input, a=R(R.input), b=R(R.input)))


def test_tensors_with_different_axes_are_different_tables(tmp_path: Path) -> None:
    nrm.save(
        tmp_path / "r", a=(torch.rand(2, 3), ("sample", "x")), b=torch.rand(4), c=(torch.rand(2, 3), ("sample", "x"))
    )
    found = nrm.load(tmp_path / "r")
    with pytest.raises(nrm.QuestionError, match="different axes"):
        found.to_pandas()
    assert list(found.to_pandas("c").columns) == ["a", "c"]
    assert set(found.to_xarray().data_vars) == {"a", "b", "c"}
    with pytest.raises(nrm.QuestionError, match="no such tensor"):
        found.to_pandas("d")
    nrm.save(tmp_path / "r", a=(torch.rand(2), ("x",)), b=(torch.rand(3), ("x",)))
    with pytest.raises(nrm.QuestionError, match="two lengths"):
        nrm.load(tmp_path / "r").to_xarray()


def test_half_precision_and_axes_of_one_name() -> None:
    table = Results({"t": torch.rand(2, 2, dtype=torch.bfloat16)}, {"t": ("pixel", "pixel")})
    assert table.to_pandas().index.names == ["pixel axis 0", "pixel axis 1"]
    assert table.to_xarray()["t"].dims == ("pixel axis 0", "pixel axis 1")


def test_streams_and_rankings_have_the_numbers_of_their_methods() -> None:
    s = streamed()
    assert "nothing read yet" in repr(s)
    frame = s.to_pandas(by="label")
    mean = s.mean(by="label")["hidden"]
    for c in range(2):
        for n in range(6):
            assert frame.loc[(c, n), "mean"] == float(mean[c, n])
            assert frame.loc[(c, n), "label label"] == CLASSES[c]
    assert "8 samples read" in repr(s)
    assert s.to_xarray(by="label")["count"].values.tolist() == [4, 4]
    many = nrm.stream(network(), [inputs(4)], {"a": nrm.layer("1"), "b": nrm.input}, rules="lrp-0", progress=False)
    assert len(many.to_pandas("b")) == 3
    with pytest.raises(nrm.QuestionError, match="which question"):
        many.to_pandas()


@pytest.mark.parametrize("stored", [False, True])
def test_rankings_are_tables_of_every_block_and_rank(stored: bool, tmp_path: Path) -> None:
    found = ranked(**({"store": tmp_path / "store"} if stored else {}))
    frame = found.to_pandas()
    assert list(frame.columns[:4]) == ["1.channels", "rank", "sample", "score"]
    for block, rows in frame.groupby("1.channels"):
        hits = found.top(nrm.layer("1").channel(int(block)))
        assert rows["sample"].tolist() == hits.samples
        assert rows["score"].tolist() == hits.scores
        assert rows["rank"].tolist() == list(range(1, len(hits) + 1))
    mean = found.statistics()["mean"]
    assert found.table().to_pandas()["mean"].tolist() == mean.tolist()
    with pytest.raises(nrm.QuestionError, match="unknown ranking"):
        found.to_pandas(by="size")


def test_comparisons_and_checks_have_the_numbers_of_their_fields() -> None:
    found = compared()
    data = found.to_xarray()
    assert data["method label"].values.tolist() == list(found.methods)
    at = list(found.methods).index("nrm")
    np.testing.assert_array_equal(data["pearson"].values[at], found["nrm"].pearson)
    np.testing.assert_array_equal(data["sc"].values[at], found["nrm"].sc)
    check = measured().check()
    assert check.to_pandas()["mass"].tolist() == pytest.approx(list(check.mass))
    assert check.to_pandas("variation")["layer label"].unique().tolist() == list(check.variation)
    frame = measured().layers.to_pandas()
    assert frame[frame["layer"] == "output"].empty
    assert frame[frame["layer"] == "1"]["mass"].tolist() == pytest.approx(list(measured().layers["1"].mass))


def test_without_pandas_or_xarray_the_text_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Results({"t": torch.rand(2)}, {"t": ("x",)})
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(MissingExtraError, match=r"nrm\[table\]"):
        table.to_xarray()
    with pytest.raises(MissingExtraError, match=r"nrm\[table\]"):
        measured().walks(k=1).to_xarray()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"nrm\[table\]"):
        table.to_pandas()


def test_texts_of_users_are_escaped() -> None:
    R = measured()
    for found in (R.table(R.input), R.flows(R.input.channels, k=3), R.walks(k=9)):
        assert "<b>sex" not in found._repr_html_()
        assert "sex" in found._repr_html_()
    assert "<i>" not in html_table("<i>", ["<i>"], [["<i>"]], ["<i>"])

"""Measures against a reference: what is said of them, how references are given, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import rnn

import nrm
from nrm.capture import Combine, OwnOp, Piece, Term


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3)).eval()


def test_a_contrast_says_what_it_is_the_difference_of(model: nn.Module) -> None:
    x, other = torch.randn(2, 2, 4)
    R = nrm.measure(model, x, against=other, target=1)
    here, there = (model(v)[:, 1].detach() for v in (x, other))
    torch.testing.assert_close(R.value, here - there)
    torch.testing.assert_close((R.here, R.there), (here, there))
    text = repr(R)
    assert f"{float(here[0]):.4g} - {float(there[0]):.4g} = {float(R.value[0]):.4g}" in text
    assert f"explains    output 1 = {float(here[0]):.4g}" in text
    assert "rules='exact'" in text
    assert R.prediction.tolist() == model(x).argmax(1).tolist()
    torch.testing.assert_close(R.values("0"), model[0](x).detach())
    assert [layer.name for layer in R.inputs] == ["input"]
    assert R.biases == []
    check = R.check()
    assert check.cut_error is not None
    assert check.cut_error < 1e-5
    assert "normalizer is held" not in repr(check)


def test_a_measure_without_a_reference_is_there_0(model: nn.Module) -> None:
    R = nrm.measure(model, torch.randn(2, 4), target=1)
    assert R.there.tolist() == [0, 0]
    assert R.here.tolist() == R.value.tolist()


@pytest.mark.parametrize("many", [1, 3])
def test_one_reference_is_that_of_all_samples(model: nn.Module, many: int) -> None:
    x, other = torch.randn(3, 4), torch.randn(many, 4)
    R = nrm.measure(model, x, against=other, target=0)
    for i in range(3):
        one = nrm.measure(model, x[i : i + 1], against=other[i % many : i % many + 1], target=0)
        torch.testing.assert_close(R(R.input)[i], one(one.input)[0], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(R.sample(i)(R.input), one(one.input), rtol=1e-3, atol=1e-4)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.first(x).tanh() * self.second(y).sigmoid()


def test_tuples_and_mappings_have_references_of_their_form() -> None:
    torch.manual_seed(0)
    model = Pair().double()
    x, y, x2, y2 = (torch.randn(2, n).double() for n in (4, 2, 4, 2))
    R = nrm.measure(model, (x, y), against=(x2, y2), target=0)
    by_name = nrm.measure(model, {"x": x, "y": y}, against={"y": y2, "x": x2[:1]}, target=0)
    assert len(by_name) == 2
    total = R(R["input[0]"].all) + R(R["input[1]"].all)
    torch.testing.assert_close(total, torch.ones(2).double())
    with pytest.raises(nrm.QuestionError, match="not made as the input is"):
        nrm.measure(model, (x, y), against=(x2,))
    with pytest.raises(nrm.QuestionError, match="not made as the input is"):
        nrm.measure(model, {"x": x, "y": y}, against={"x": x2})


def test_words_make_references_of_the_input() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 2)).double()
    image = torch.rand(2, 3, 16, 16).double()
    zeros, blur = (nrm.measure(model, image, against=word, target=0) for word in ("zeros", "blur"))
    torch.testing.assert_close(zeros.value, (model(image) - model(0 * image))[:, 0].detach())
    flat = torch.full((1, 3, 16, 16), 0.7).double()
    for word, R in (("zeros", zeros), ("blur", blur)):
        seen = nrm.measure(model, image, against=nrm.reference(word, image), target=0)
        torch.testing.assert_close(seen.value, R.value)
    still = nrm.measure(model, flat, against="blur", target=0)
    assert float(still.value.abs()) < 1e-12
    assert float(blur.value.abs().min()) > 0
    with pytest.raises(nrm.QuestionError, match=r"unknown reference 'blurr'(.|\n)*against='blur'"):
        nrm.measure(model, image, against="blurr")
    with pytest.raises(nrm.QuestionError, match="only images can be blurred"):
        nrm.measure(nn.Linear(4, 2), torch.rand(1, 4), against="blur")
    ids = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    with pytest.raises(nrm.QuestionError, match="no reference 'zeros' for these inputs"):
        nrm.measure(ids, torch.tensor([[1, 2]]), against="zeros")


def test_references_are_made_from_data() -> None:
    data = torch.randn(7, 3)
    torch.testing.assert_close(nrm.reference("mean", data), data.mean(0, keepdim=True))
    shuffled = nrm.reference("shuffle", data, seed=3)
    assert sorted(map(tuple, shuffled.tolist())) == sorted(map(tuple, data.tolist()))
    assert not bool((shuffled == data).all(1).any())
    assert torch.equal(shuffled, nrm.reference("shuffle", data, seed=3))
    both = nrm.reference("shuffle", {"a": data, "b": data + 1})
    torch.testing.assert_close(both["a"] + 1, both["b"])
    for bad in ({"kind": "median", "data": data}, {"kind": "shuffle", "data": data[:1]}, {"kind": "mean", "data": 3}):
        with pytest.raises(nrm.QuestionError):
            nrm.reference(**bad)
    with pytest.raises(nrm.QuestionError, match="integers have no mean"):
        nrm.reference("mean", torch.tensor([[1], [2]]))


def test_several_references_are_averaged_and_have_intervals(model: nn.Module) -> None:
    x, others = torch.randn(2, 4), [torch.randn(1, 4) for _ in range(6)]
    R = nrm.measure(model, x, against=others, target=0, labels={"output": ["a", "b", "c"]})
    mean = torch.stack([model(other)[:, 0] for other in others]).mean(0)
    torch.testing.assert_close(R.in_units(R.input).sum(1), (model(x)[:, 0] - mean).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(R.there, mean.detach().expand(2))
    torch.testing.assert_close(R.here - R.there, R.value)
    low, high = R.interval(R.input, draws=200)
    assert low.shape == high.shape == (2, 4)
    assert bool((low <= high).all())
    assert R.each_reference(R.input).shape == (6, 2, 4)
    here, there, gap = (float(t[0]) for t in (R.here, R.there, R.value))
    assert f"{here:.4g} - {there:.4g} = {gap:.4g}" in repr(R)
    assert "less the references' mean" in repr(R)
    assert len(R.check(strict=False)) == 6
    assert R.table(R.input).tensors["relevance"].shape == (2, 4)
    assert [tuple(heat.shape) for _, heat in R.each(R["1"].channels[:2], R.input)] == [(2, 4), (2, 4)]
    assert all(sum(row.mass) == pytest.approx(2.0, abs=1e-4) for row in R.layers if row.is_cut)
    for ask in (R.lift, R.walks):
        with pytest.raises(nrm.QuestionError, match="average"):
            ask(R.input)
    with pytest.raises(nrm.QuestionError, match="without references"):
        nrm.measure(model, x, against=[])


def test_a_difference_of_0_is_said_to_be_that(model: nn.Module) -> None:
    x = torch.randn(1, 4)
    R = nrm.measure(model, x, against=x.clone(), target=0)
    with pytest.raises(nrm.NrmError, match="The explained difference is 0"):
        R(R.input)
    near = nrm.measure(model, x, against=x + 1e-7, target=0)
    with pytest.raises(nrm.NrmError, match="The explained difference is"):
        near.check()


REFUSED = {
    "rules between layers": {"rules": nrm.Gradient()},
    "no biases": {"bias": "ignore"},
    "normalized by its difference": {"normalize": False},
    "no rule in a contrast": {"rules": "attn-lrp"},
    "spread by a softmax": {"target": "softmax"},
    "does not have the shape": {"against": torch.zeros(1, 5)},
}


@pytest.mark.parametrize("what", REFUSED)
def test_options_without_a_meaning_are_refused(model: nn.Module, what: str) -> None:
    with pytest.raises(nrm.NrmError, match=what):
        nrm.measure(model, torch.randn(2, 4), **{"against": torch.zeros(1, 4), **REFUSED[what]})


def test_exact_rules_are_for_contrasts(model: nn.Module) -> None:
    with pytest.raises(nrm.RuleError, match="exact rules are those of a contrast"):
        nrm.measure(model, torch.randn(2, 4), rules="exact")


class Deciding(nn.Module):
    """Takes another way, another order, or another number, as its input says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.lin = how, nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x)
        if self.how == "way":
            return y.relu() if bool((x.sum() > 0).all()) else y.tanh()
        if self.how == "loop":
            for _ in range(1 + int(x.sum() > 0)):
                y = y.tanh()
            return y.exp()
        if self.how == "order":
            return y.gather(1, x.argsort(1)).tanh()
        if self.how == "index":
            return y[:, x.argmax(1)].tanh()
        if self.how == "shape":
            return y[:, x[0] > -1.5].sum(1, keepdim=True).tanh()
        if self.how == "number":
            return (y * float(x.sum() > 0)).tanh()
        if self.how == "scale":
            return (y * (x > 0)).tanh()
        return torch.where(x > 0, y, -y)


DIFFERING = {
    "way": r"do different things(.|\n)*first at layer '/relu'(.|\n)*relu here, tanh in the reference",
    "loop": r"do different things(.|\n)*first at layer '/tanh#1'(.|\n)*tanh here, exp in the reference",
    "shape": r"first at layer '/getitem#1'(.|\n)*shape \(1, 3\) here, \(1, 1\) in the reference(.|\n)*align",
    "order": r"other places(.|\n)*layer '/gather'",
    "index": r"other places(.|\n)*layer '/getitem'",
    "number": r"a constant that is computed from the input differs(.|\n)*layer '/mul'(.|\n)*other numbers",
    "scale": r"a constant that is computed from the input differs(.|\n)*layer '/mul'(.|\n)*other numbers",
    "choice": r"a condition chooses other entries(.|\n)*layer '/where'",
}


@pytest.mark.parametrize("how", DIFFERING)
def test_runs_that_differ_are_refused_by_the_first_op(how: str) -> None:
    x, model = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64), Deciding(how).double()
    model.lin.weight.data, model.lin.bias.data = torch.eye(3).double() / 4, torch.ones(3).double()
    with pytest.raises(nrm.CaptureError, match=DIFFERING[how]):
        nrm.measure(model, x, against=-x, target=0)
    R = nrm.measure(model, x, against=0.5 * x, target=0)
    torch.testing.assert_close(R(R.input).sum(1), torch.ones(1).double())


class Packed(nn.Module):
    """Reads sequences of their own lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.lstm(packed)[1][0][-1])


@pytest.mark.parametrize(
    ("lengths", "text"),
    [([5, 4], r"first at layer '/pack_padded_sequence'(.|\n)*shape \(8, 3\) here, \(9, 3\)(.|\n)*align"),
     ([4, 4], r"first at layer 'lstm/unpack'(.|\n)*align")],
)  # fmt: skip
def test_lengths_that_differ_are_refused(lengths: list[int], text: str) -> None:
    torch.manual_seed(0)
    model, (x, other), mine = Packed(), torch.randn(2, 2, 5, 3), torch.tensor([5, 3])
    with pytest.raises(nrm.CaptureError, match=text):
        nrm.measure(model, (x, mine), against=(other, torch.tensor(lengths)), target=0)
    R = nrm.measure(model, (x, mine), against=(other, mine), target=0)
    torch.testing.assert_close(R(R.input).sum((1, 2)), torch.ones(2))


PIECEWISE = {
    "a relu by hand": lambda x: torch.where(x > 0, x, 0.0),
    "a leaky relu": lambda x: torch.where(x > 0, x, 0.1 * x),
    "an elu": lambda x: x.where(x > 0, x.exp() - 1),
    "huber": lambda x: torch.where(x.abs() < 1, 0.5 * x**2, x.abs() - 0.5),
    "masked_fill": lambda x: x.masked_fill(x < 0, 0.0),
    "a jump": lambda x: torch.where((x > -1) & (x < 2), x.tanh(), 1.0),
    "a logarithm, guarded": lambda x: torch.where(x > 0.1, x.clamp(min=0.1).log(), 0.0),
}


class Between(nn.Module):
    def __init__(self, phi: object) -> None:
        super().__init__()
        self.first, self.last, self.phi = nn.Linear(4, 6), nn.Linear(6, 2), phi

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.phi(self.first(x)))


@pytest.mark.parametrize("name", PIECEWISE)
def test_a_choice_by_one_tensor_is_a_function_of_it(name: str) -> None:
    """A condition that differs between the runs: its secant is exact, also if one branch is chosen by nobody here."""
    torch.manual_seed(0)
    phi, model = PIECEWISE[name], Between(PIECEWISE[name]).double()
    x, other = 2 * torch.randn(2, 3, 4).double()
    for here, there in ((x, other), (x, -x)):
        R = nrm.measure(model, here, against=there, target=0)
        z, z2 = (model.first(v).detach() for v in (here, there))
        truth = (phi(z) - phi(z2)) * model.last.weight[0].detach()
        torch.testing.assert_close(R.in_units(R["first"]), truth, rtol=1e-9, atol=1e-12)
        assert R.check().cut_error < 1e-10


def test_what_is_chosen_nowhere_in_one_run_is_no_other_way() -> None:
    x = torch.rand(1, 4) + 0.1
    R = nrm.measure(Between(PIECEWISE["a relu by hand"]), x, against=-x, target=0)
    torch.testing.assert_close(R(R.input).sum(1), torch.ones(1))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.words(input_ids)
        scores = (h @ h.mT).masked_fill(attention_mask[:, None] == 0, -torch.inf)
        return self.head((scores.softmax(-1) @ h)[:, 0])


def test_tokens_differ_by_their_rows_and_padding_must_not() -> None:
    torch.manual_seed(0)
    model = Words().double()
    ids, other = torch.tensor([[1, 2, 3, 0]]), torch.tensor([[1, 5, 3, 0]])
    mask, longer = torch.tensor([[1, 1, 1, 0]]), torch.tensor([[1, 1, 1, 1]])
    given = {"input_ids": ids, "attention_mask": mask}
    R = nrm.measure(model, given, against={"input_ids": other, "attention_mask": mask}, target=0)
    heat = R(R.input.positions)[0]
    torch.testing.assert_close(heat, torch.tensor([0.0, 1.0, 0.0, 0.0]).double(), atol=1e-9, rtol=0)
    with pytest.raises(nrm.QuestionError, match=r"padded in different ways(.|\n)*align"):
        nrm.measure(model, given, against={"input_ids": other, "attention_mask": longer})
    with pytest.raises(nrm.QuestionError, match=r"shape of the input(.|\n)*align"):
        nrm.measure(model, given, against={"input_ids": other[:, :3], "attention_mask": mask[:, :3]})


class Squash(nn.Module):
    """A function of one's own, known by its two values."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.detach().numpy() ** 3) + 1


class Crossed(OwnOp):
    """A product of two, as somebody might read it."""


@pytest.fixture
def vocabulary() -> object:
    from nrm.capture.contrast import OWN
    from nrm.capture.vocabulary import VOCABULARY

    before, own = dict(VOCABULARY), dict(OWN)
    yield
    VOCABULARY.clear(), VOCABULARY.update(before), OWN.clear(), OWN.update(own)


@pytest.mark.usefixtures("vocabulary")
def test_own_functions_have_secants_and_own_ops_state_their_split() -> None:
    nrm.register(Squash, "activation")
    x, other = torch.randn(2, 2, 4).double()
    R = nrm.measure(nn.Sequential(Squash(), nn.Linear(4, 2).double()), x, against=other, target=0)
    torch.testing.assert_close(R(R.input).sum(1), torch.ones(2).double())

    class Model(nn.Module):
        def forward(self, v: Tensor) -> Tensor:
            return torch.hypot(v, v.flip(1))

    read = lambda call, u, v: call.one(Crossed(), u, v)  # noqa: E731
    nrm.register("hypot", read)
    with pytest.raises(nrm.CaptureError, match=r"no exact split for hypot(.|\n)*contrast="):
        nrm.measure(Model(), x, against=other)

    def split(step, u, v):  # type: ignore[no-untyped-def]
        total = step.result.here + step.result.there
        forms = [lambda one=one: (Piece(post=2 * one.mean / total),) for one in (u, v)]
        return step.local(*forms, moves=(None, None))

    nrm.register("hypot", read, contrast=split)
    R = nrm.measure(Model(), x, against=other, target=0)
    torch.testing.assert_close(R(R.input).sum(1), torch.ones(2).double())
    nrm.register("hypot", lambda call, u, v: call.one(Combine((Term(), Term()), joins=True), u, v))
    with pytest.raises(nrm.CaptureError, match="does not compute what it computes"):
        nrm.measure(Model(), x, against=other)


def test_half_precision_runs_in_float32(model: nn.Module) -> None:
    x, other = torch.randn(2, 2, 4).half()
    R = nrm.measure(model.half(), x, against=other, target=0)
    assert R(R.input).dtype == torch.float32
    assert R.check().moved is not None
    torch.testing.assert_close(R(R.input).sum(1), torch.ones(2), atol=1e-4, rtol=0)


def test_a_contrast_is_saved_with_what_it_compares(model: nn.Module, tmp_path: Path) -> None:
    x, other = torch.randn(2, 2, 4)
    R = nrm.measure(model, x, against=other, target=0)
    nrm.save(tmp_path / "heat.safetensors", measure=R, heat=R(R.input))
    loaded = nrm.load(tmp_path / "heat.safetensors")
    torch.testing.assert_close(loaded["heat"], R(R.input))
    facts = R.describe()
    assert facts["rules"] == "exact"
    assert facts["against"] == {"here": model(x)[:, 0].tolist(), "reference": model(other)[:, 0].tolist()}


def test_questions_searches_and_formulas_work_on_it(model: nn.Module) -> None:
    x, other = torch.randn(2, 2, 4)
    R = nrm.measure(model.double(), x.double(), against=other.double(), target=0, memory="64 MiB")
    a, b = R["0"], R["1"]
    table = R(R.input, a, b)
    torch.testing.assert_close(table.sum((1, 2)), R(b))
    best = R.flows(R.input, b, k=1)
    joint = R(R.input, b)
    assert [round(flows[0].relevance, 9) for flows in best] == [round(float(t.max()), 9) for t in joint]
    event = nrm.visits(a.channel([1, 2])) & ~nrm.visits(R.input[0])
    torch.testing.assert_close(R(event), R(R.input[1:], a.channel([1, 2])))
    torch.testing.assert_close(R(R.input, given=b.channel(0)).sum(1), torch.ones(2).double())
    plain = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    W = nrm.measure(plain, x.double(), against=other.double(), target=0)
    for walk in (found[0] for found in W.walks(k=1)):
        assert float(W(*walk)) == pytest.approx(walk.relevance)
    for walk in (found[0] for found in R.walks(k=1)):  # through a norm
        assert float(R(*walk)) == pytest.approx(walk.relevance)


def test_maxima_that_differ_are_split_between_both() -> None:
    model = nn.Sequential(nn.MaxPool1d(2), nn.Flatten())
    R = nrm.measure(model, torch.tensor([[[3.0, 1.0]]]), against=torch.tensor([[[0.0, 2.0]]]))
    torch.testing.assert_close(R.in_units(R.input), torch.tensor([[[1.5, -0.5]]]))  # G = 2, G2 = 2
    assert F.max_pool1d(torch.tensor([[3.0, 1.0]]), 2).item() - 2.0 == float(R.value)


def test_what_helps_a_contrast_is_the_exact_split() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).double()
    others = torch.randn(300, 4).double()
    x = others[:1]
    near = (model(x) - model(others[1:])).abs().flatten().argmin() + 1  # differences that cancel almost altogether
    for rules, helps in (("exact", False), (nrm.Gamma(0.25), True)):
        verdict = repr(nrm.measure(model, x, against=others[near][None], rules=rules).check(strict=False))
        assert "both signs cancel" in verdict
        assert ("rules='exact'" in verdict) == helps
        assert "nrm.Gamma" not in verdict

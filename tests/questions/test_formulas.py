"""Formulas as a user writes them: values, texts, plans, tables, and what is refused."""

from __future__ import annotations

import copy
import html
import importlib
import itertools
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.questions import Formula
from nrm.questions.formula import ATOMS
from nrm.steps import Arrivals, Network
from recurrent import Fused, Loop, layer

a, b = nrm.layer("a"), nrm.layer("b")
A, B, C = nrm.visits(a.channel(3)), nrm.visits(b.channel(1), a.channel(2)), nrm.visits(b[:, 0])


def close(got: Tensor, wanted: Any) -> None:
    torch.testing.assert_close(got, torch.as_tensor(wanted, dtype=got.dtype), rtol=1e-9, atol=1e-12)


# ---- values ----------------------------------------------------------------------------------------------------------

PRINTED: list[tuple[Formula, str]] = [
    (A, "visits(a.channel(3))"),
    (B, "visits(b.channel(1), a.channel(2))"),
    (~A, "~visits(a.channel(3))"),
    (~~A, "~~visits(a.channel(3))"),
    (A & B, "visits(a.channel(3)) & visits(b.channel(1), a.channel(2))"),
    (~(A | C), "~(visits(a.channel(3)) | visits(b[:, 0]))"),
    ((A ^ C) & A, "(visits(a.channel(3)) ^ visits(b[:, 0])) & visits(a.channel(3))"),
    (A.implies(C), "visits(a.channel(3)) -> visits(b[:, 0])"),
    ((~A).implies(A & C), "~visits(a.channel(3)) -> (visits(a.channel(3)) & visits(b[:, 0]))"),
    (~A.implies(C), "~(visits(a.channel(3)) -> visits(b[:, 0]))"),
    ((A & C).implies(A), "(visits(a.channel(3)) & visits(b[:, 0])) -> visits(a.channel(3))"),
    (A.implies(A) | C, "(visits(a.channel(3)) -> visits(a.channel(3))) | visits(b[:, 0])"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "text"), PRINTED, ids=[text for _, text in PRINTED])
def test_formulas_print_compare_and_store(value: Formula, text: str) -> None:
    assert str(value) == text
    assert eval(repr(value), {"nrm": nrm}) == value
    for twin in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert twin == value
        assert hash(twin) == hash(value)
    assert f"<code>{html.escape(text)}</code>" == value._repr_html_()


def test_formulas_are_equal_by_what_they_say() -> None:
    assert nrm.visits(a.channel(3)) & C == A & C
    assert len({A & C, C & A, A & C}) == 2
    assert (A & C & A).atoms == (A & C).atoms
    assert (B & A).sets == (b.channel(1), a.channel(2), a.channel(3))


def test_truth() -> None:
    assert (A & B).truth().tolist() == [False, False, False, True]
    assert (A ^ B).truth().tolist() == [False, True, True, False]
    assert (A | ~A).truth().tolist() == [True, True]
    assert ((A & B) | C).truth((A & B & C).atoms).tolist() == [False] * 3 + [True] * 5


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda: a.channel(3) & b.channel(1), ["different layers", "wrap them in nrm.visits"]),
        (lambda: a.channel(3) | A, ["combines with sets only, not with a Formula", "nrm.visits(set)"]),
        (lambda: A & a.channel(3), ["combines with formulas only, not with a Set", "wrap sets in nrm.visits"]),
        (lambda: A.implies(True), ["combines with formulas only, not with a bool"]),
        (lambda: bool(A), ["a formula has no truth value", "& | ~"]),
        (lambda: A and B, ["no truth value"]),
        (lambda: nrm.visits(), ["nothing to visit"]),
        (lambda: nrm.visits(a), ["walks visit sets", ".all is a whole layer"]),
        (lambda: nrm.visits(a.channels), ["walks visit sets", "a.channels[3] is one block"]),
        (lambda: nrm.visits(A), ["walks visit sets", "an event already"]),
        (lambda: nrm.visits("a"), ["walks visit sets", "R['a'].channel(3)"]),
    ],
)
def test_what_cannot_be_written(write: Callable[[], Any], words: list[str]) -> None:
    with pytest.raises(nrm.QuestionError) as caught:
        write()
    for word in words:
        assert word in str(caught.value)


# ---- texts -----------------------------------------------------------------------------------------------------------

SETS = {"fin": a.channel(3), "net": [b.channel(1), a.channel(2)], "eye": C, "two words": b.channel(9)}
ODD = {"and": A, '5" lens': b[:, 0], "two\nlines": B, "": a.channel(3)}

TEXTS: list[tuple[str, Formula, str]] = [
    ("fin", A, "fin"),
    ("fin AND NOT net", A & ~B, "fin & ~net"),
    ("fin and not (net or eye)", A & ~(B | C), "fin & ~(net | eye)"),
    ("~fin & net ^ fin | net -> fin", (((~A & B) ^ A) | B).implies(A), "(((~fin & net) ^ fin) | net) -> fin"),
    ("fin IMPLIES net implies eye", A.implies(B.implies(C)), "fin -> (net -> eye)"),
    ("fin XOR net\n  AND\tfin", A ^ (B & A), "fin ^ (net & fin)"),
    ('NOT "two words"', ~nrm.visits(b.channel(9)), '~"two words"'),
    ("((fin))", A, "fin"),
    ("(fin -> net) -> fin", A.implies(B).implies(A), "(fin -> net) -> fin"),
    ('NOT "and" OR "5"" lens"', ~A | C, '~"and" | "5"" lens"'),
    ('"two\nlines" & ""', B & A, '"two lines" & ""'),
]


@pytest.mark.parametrize(("text", "formula", "printed"), TEXTS, ids=[text for text, _, _ in TEXTS])
def test_texts(text: str, formula: Formula, printed: str) -> None:
    read = nrm.query(text, {**SETS, **ODD})
    assert read == formula
    assert nrm.query(printed, {**SETS, **ODD}) == formula
    assert hash(read) == hash(formula)
    assert str(read) == printed
    assert eval(repr(read), {"nrm": nrm}) == formula


def test_names_as_keywords() -> None:
    assert nrm.query("fin AND NOT net", fin=a.channel(3), net=B) == A & ~B
    assert nrm.query("band & order", {"band": a.channel(3)}, order=b[:, 0]) == A & C


@pytest.mark.parametrize(
    ("text", "at", "words"),
    [
        ("fin AND", 8, "a name, NOT or ("),
        ("", 1, "a name, NOT or ("),
        ("fin AND OR net", 9, "a name, NOT or ("),
        ("fin net", 5, "AND, OR, XOR, IMPLIES, ) or the end"),
        ("(fin AND net", 13, "AND, OR, XOR, IMPLIES, ) or the end"),
        ("fin) net", 4, "AND, OR, XOR, IMPLIES, ) or the end"),
        ("fin $ net", 5, "AND, OR, XOR, IMPLIES, ) or the end"),
        ('fin AND "net', 9, "a name, NOT or ("),
        ("__import__('os')", 11, "or the end"),
        ("fin AND nett", 9, "one of 'fin', 'net', 'eye', 'two words'"),
    ],
)
def test_errors_point_to_their_place(text: str, at: int, words: str) -> None:
    with pytest.raises(nrm.QuestionError) as caught:
        nrm.query(text, SETS)
    lines = str(caught.value).splitlines()
    assert f"character {at}" in lines[1]
    assert lines[2] == f"  got:      {text}"
    assert lines[3].index("^") == len("  got:      ") + at - 1
    assert words in lines[4]


def test_a_long_text_is_shown_in_part() -> None:
    with pytest.raises(nrm.QuestionError) as caught:
        nrm.query("fin AND " * 50 + "NOPE" + " AND fin" * 50, SETS)
    lines = str(caught.value).splitlines()
    assert len(lines[2]) < 100
    assert lines[2][lines[3].index("^") :].startswith("NOPE")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3,), ["a query is a text"]),
        (("fin " * 3000,), ["too long", "at most 10000"]),
        (("fin", {"fin": a}), ["'fin' is no set", "fin=a.channel(3)"]),
        (("fin", {"fin": []}), ["'fin' is no set"]),
        (("fin", {"fin": "a"}), ["'fin' is no set"]),
        (("fin",), ["no set for 'fin'", "sets by name"]),
        (("fin", {3: a.channel(3)}), ["the name of a set is a text", "3"]),
    ],
)
def test_queries_that_are_refused(arguments: tuple[Any, ...], words: list[str]) -> None:
    with pytest.raises(nrm.QuestionError) as caught:
        nrm.query(*arguments)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("text", ["NOT " * 2000 + "fin", "(" * 4000 + "fin" + ")" * 4000, " & ".join(["fin"] * 1600)])
def test_texts_may_be_nested_more_deeply_than_calls_of_python(text: str) -> None:
    formula = nrm.query(text, SETS)
    assert formula.truth().tolist() == [False, True]
    assert formula == nrm.query(text, SETS)
    assert hash(formula) == hash(nrm.query(text, SETS))
    assert len(formula.sets) == 1
    assert str(formula).replace("(", "").startswith(("~", "fin"))


# ---- questions -------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """A residual block between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu1(self.stem(x))
        h = self.relu2(self.conv(h) + h)
        return self.head(h.mean((2, 3)))


@pytest.fixture(scope="module")
def R() -> nrm.Measure:
    torch.manual_seed(0)
    return nrm.measure(Net().double().eval(), torch.rand(2, 2, 6, 6).double(), rules="epsilon-plus", bias="input")


@pytest.fixture(scope="module")
def three(R: nrm.Measure) -> list[nrm.Set]:
    return [R["relu1"].channel([0, 1]), R["conv"].channel([1, 2]), R.input[:, :3]]


def test_axes_come_in_the_order_of_the_arguments(R: nrm.Measure, three: list[nrm.Set]) -> None:
    low, high, x = R["relu1"], R["relu2"], R.input
    f = nrm.visits(three[1]) | nrm.visits(three[2])
    table = R(low.channels, f, x.positions, high.channel(1))
    assert table.shape == (2, 4, 6, 6)
    close(table, R(x.positions, high.channel(1), low.channels, f).permute(0, 3, 1, 2))
    close(table[:, 1], R(x.positions, low.channel(1), f, high.channel(1)))
    close(R(low.channels, high.channels, f).sum(2), R(low.channels, f, high.all))
    close(R(low.channels, low.positions, f).sum((2, 3)), R(low.channels, f))
    close(R(nrm.stack(low.channels, high.channels), f), torch.cat([R(low.channels, f), R(high.channels, f)], 1))
    shares = R(low.channels, given=[f, high.channels])
    close(shares * R(high.channels, f)[:, None], R(low.channels, f, high.channels))


def test_each_block_by_itself(R: nrm.Measure, three: list[nrm.Set]) -> None:
    f = ~nrm.visits(*three)
    for block, heat in R.each(R["relu2"].channels, R.input, f):
        close(heat, R(block, R.input, f))


def test_samples(R: nrm.Measure, three: list[nrm.Set]) -> None:
    f = nrm.visits(three[0]) & ~nrm.visits(three[2])
    close(R.sample(1)(f), R(f)[1:])
    close(R(nrm.visits(three[0].of_sample(1)) & ~nrm.visits(three[2])), R(f)[1:])
    own = nrm.visits(R["relu1"].channel([[0], [1, 2]]))
    close(R(own)[0], R(R["relu1"].channel(0))[0])
    close(R(own)[1], R(R["relu1"].channel([1, 2]))[1])


def test_text_queries_are_asked_and_planned(R: nrm.Measure, three: list[nrm.Set]) -> None:
    f = nrm.query("low AND NOT branch", low=three[0], branch=three[1])
    close(R(f), R(three[0]) - R(three[0], three[1]))
    assert R.plan(f).messages == 1


def test_excluded_outputs_have_measure_zero_in_formulas_and_are_refused_as_sets(R: nrm.Measure) -> None:
    other = (int(R.prediction[0]) + 1) % 3
    assert float(R(nrm.visits(R.output.channel(other)))[0]) == 0
    with pytest.raises(nrm.QuestionError, match="target excludes"):
        R(R.output.channel(other))


def test_dividends(R: nrm.Measure, three: list[nrm.Set]) -> None:
    """The truth table, the Moebius transform of the avoiding game, and it adds up to 1."""
    table = R.dividends(*three)
    assert table.shape == (2, 2, 2, 2)
    close(table.sum((1, 2, 3)), [1.0, 1.0])
    atoms = [nrm.visits(s) for s in three]
    for bits in itertools.product((0, 1), repeat=3):
        f = atoms[0] | ~atoms[0]
        for one, bit in zip(atoms, bits, strict=True):
            f = f & (one if bit else ~one)
        close(table[:, bits[0], bits[1], bits[2]], R(f))
    game = table.cumsum(1).cumsum(2).cumsum(3)
    close(game[:, 1, 0, 1], R(~atoms[1]))
    close(game[:, 0, 0, 0], R(~nrm.visits(*three)))
    close(R.dividends(nrm.visits(*three))[:, 1], R(nrm.visits(*three)))
    close(R.sample(1).dividends(*three), table[1:])
    close(R.dividends(three[0].of_sample(1), three[1], three[2]), table[1:])


def test_twelve_events() -> None:
    """As many as are told apart, spread over three layers, two of each overlapping; and the formula of all of them."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    R = nrm.measure(model, torch.rand(1, 5).double(), rules="epsilon-plus")
    sets = [R[name].channel([i, i + 1]) for name in ("input", "1", "3") for i in range(4)]
    assert len(sets) == ATOMS
    table = R.dividends(*sets)
    close(table.sum(), 1.0)
    atoms = [nrm.visits(s) for s in sets]
    close(table.select(12, 1).select(5, 0).sum(), R(atoms[11] & ~atoms[4])[0])
    parity = atoms[0]
    for one in atoms[1:]:
        parity = parity ^ one
    odd = sum(torch.meshgrid(*[torch.arange(2)] * 12, indexing="ij")) % 2 == 1
    close(R(parity), table[0][odd].sum()[None])
    plan = R.plan(parity)
    assert plan.messages == 2  # even and odd
    assert R.plan(atoms[0] & atoms[4] & atoms[8]).messages == 1
    one, whole = R["3"].channel([1, 4]), table[0][odd].sum()
    close(R(parity, one) + R(parity, ~one), whole[None])  # sets come beside the largest formula, and condition it
    assert R.plan(parity, one, R["0"].channel([0, 3])).messages == 2
    close(R(parity, given=one) * R(one), R(parity, one))
    close(R(R.input, parity, one).sum(1) + sum(R(b.all, parity, one) for b in R.biases), R(parity, one))


def test_disjoint_sets_of_one_layer_are_never_both_visited(R: nrm.Measure) -> None:
    low = R["relu1"]
    both = nrm.visits(low.channel(0)) & nrm.visits(low.channel(1))
    assert R.plan(both).messages <= 1
    assert torch.equal(R(both), torch.zeros(2).double())
    assert torch.equal(R.dividends(low.channel(0), low.channel(1))[:, 1, 1], torch.zeros(2).double())


def test_plans(R: nrm.Measure, three: list[nrm.Set]) -> None:
    f = nrm.visits(three[0]) ^ nrm.visits(three[1]) ^ nrm.visits(three[2])
    plan = R.plan(f)
    text = repr(plan)
    assert plan.messages == 2
    assert plan.shape == (2,)
    assert "at most 2 messages side by side" in text
    assert "pull until settled" in text
    assert "in 1 sweep of about" in text
    assert plan.flops > 0
    heat = R.plan(R.input, f)
    assert heat.shape == (2, 2, 6, 6)
    assert "read at input" in repr(heat)
    middle = R.plan(R["relu2"].channels, f, R["relu1"].channels)
    assert middle.shape == (2, 4, 4)
    assert "push to relu1" in repr(middle)
    assert "pull to relu2" in repr(middle)
    assert "sample 2, relu2.channels 4, relu1.channels 4" in repr(middle)


def test_what_is_not_computed_needs_no_memory() -> None:
    """Below the layer that is read, only what events still happen in counts."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(8), nn.Flatten(), nn.Linear(32, 4), nn.ReLU(),
        nn.Linear(4, 2),
    )  # fmt: skip
    R = nrm.measure(model, torch.rand(1, 1, 16, 16))
    f = nrm.visits(R["5"].channel(0)) ^ nrm.visits(R["4"].channel(1))
    assert R.plan(R["5"].channels, f).messages == 2
    assert R.plan(R["5"].channels, f).peak < 1000 < R.plan(R.input, f).peak


def test_little_memory() -> None:
    """Events are told apart one by one, blocks come in chunks, and what never fits is refused beforehand."""
    torch.manual_seed(0)
    model, x = Net().double().eval(), torch.rand(2, 2, 6, 6).double()
    wide = nrm.measure(model, x, rules="epsilon-plus", bias="input")
    low, high, conv = wide["relu1"], wide["relu2"], wide["conv"]
    f = nrm.visits(high.channel(0)) ^ nrm.visits(conv.channel(1)) ^ nrm.visits(low.channel(2))
    assert wide.plan(f).chunks == 1
    small = nrm.measure(model, x, rules="epsilon-plus", bias="input", memory=wide.plan(f).peak * 2 // 3)
    assert small.plan(f).chunks > 1
    assert small.plan(f).peak <= wide.plan(f).peak * 2 // 3
    close(small(f), wide(f))
    close(small(high.channels, wide.input, f), wide(high.channels, wide.input, f))
    assert small.plan(high.channels, wide.input, f).chunks > 4
    everywhere = [nrm.visits(*(n.channel(c) for n in (high, conv, low))) for c in range(3)]
    g = everywhere[0] ^ everywhere[1] ^ everywhere[2]
    close(wide.dividends(*everywhere).sum((1, 2, 3)), [1.0, 1.0])
    tiny = nrm.measure(model, x, rules="epsilon-plus", bias="input", memory=20000)
    with pytest.raises(nrm.MemoryLimitError, match="more messages side by side") as caught:
        tiny(g)
    assert "R.plan(formula)" in str(caught.value)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda R, S: R(*(nrm.visits(R.input[:, i % 3, i // 3]) for i in range(15))), "at most 12"),
        (lambda R, S: R.plan(*(nrm.visits(R.input[:, i % 3, i // 3]) for i in range(15))), "15 different events"),
        (lambda R, S: R(*(R[n].all for n in ("stem", "relu1", "conv", "relu2", "/mean")),
                        *(nrm.visits(R.input[:, 0, i]) for i in range(6)),
                        *(nrm.visits(R.input[:, 1, i]) for i in range(6))), "12 events of formulas and 5 sets"),
        (lambda R, S: R.flows(R["relu1"].channels, nrm.visits(S[1])), "flows take sets and partitions"),
        (lambda R, S: R(nrm.visits(nrm.layer("nope").all)), "unknown layer"),
        (lambda R, S: R(nrm.visits(R["relu1"].channel(99))), "no such block"),
        (lambda R, S: R(R["relu1"], given="x"), "not a condition"),
        (lambda R, S: R("fin AND net"), "nrm.query(text, name=set) reads a formula"),
        (lambda R, S: R(3), "or a formula"),
        (lambda R, S: R.dividends(), "1 to 12"),
        (lambda R, S: R.dividends(*[S[0]] * 13), "13 events"),
        (lambda R, S: R.dividends(nrm.visits(S[0]) & nrm.visits(S[1])), "dividends are of sets"),
        (lambda R, S: R.dividends(R["relu1"].channels), "dividends are of sets"),
        (lambda R, S: R.expect({}), "no weights"),
        (lambda R, S: R.expect(3), "no weights"),
        (lambda R, S: R.expect({"relu1": 1.0}), "weights are for layers and sets"),
        (lambda R, S: R.expect({R["relu1"]: "x"}), "cannot be read as numbers"),
        (lambda R, S: R.expect({R["relu1"]: float("nan")}), "finite"),
        (lambda R, S: R.expect({R["relu1"]: torch.ones(5, 5)}), "does not fit layer 'relu1'"),
        (lambda R, S: R.expect({S[0]: 1.0}, S[0], given=nrm.stack(S[1].layer)), "a stack is no condition"),
        (lambda R, S: R.additive(), "nothing was asked"),
        (lambda R, S: R.additive(R["relu1"].channels, S[0]), "of sets, or of one partition alone"),
        (lambda R, S: R.additive(R["relu1"].channels, at=R.input), "of sets, or of one partition alone"),
        (lambda R, S: R.additive(S[0], layers="relu1"), "layers are several cuts"),
        (lambda R, S: R.additive(S[0], layers=[]), "layers are several cuts"),
        (lambda R, S: R.additive(S[0], at="input"), "str: 'input'"),
        (lambda R, S: R.additive(S[1], layers=["relu2"]), "in none of the cuts"),
    ],
)  # fmt: skip
def test_complaints(R: nrm.Measure, three: list[nrm.Set], ask: Callable[..., Any], words: str) -> None:
    with pytest.raises(nrm.QuestionError) as caught:
        ask(R, three)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "ask", [lambda R, S: R(nrm.visits(S)), lambda R, S: R.additive(S), lambda R, S: R.dividends(S)]
)
def test_unnormalized_measures_are_refused(ask: Callable[..., Any]) -> None:
    R = nrm.measure(Net(), torch.rand(1, 2, 6, 6), normalize=False)
    with pytest.raises(nrm.QuestionError, match="need a normalized measure"):
        ask(R, R["relu1"].channel(0))


def one_layer(*weights: float) -> nrm.Measure:
    model = nn.Linear(len(weights), 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weights], dtype=torch.float64))
    return nrm.measure(model, torch.ones(1, len(weights)).double(), rules="lrp-0")


def test_conditions_that_cancel_warn_and_raise() -> None:
    R = one_layer(1.0, -1 + 1e-4, 5.0)
    with pytest.warns(nrm.NrmWarning, match="below 0.1 % of the total variation"):
        R(R.input, given=nrm.visits(R.input[:2]))
    R = one_layer(1.0, -1 + 1e-15, 5.0)
    with pytest.raises(nrm.PrecisionError, match="lost in rounding"):
        R(R.input, given=nrm.visits(R.input[:2]))


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lark", None)
    importlib.import_module("nrm.questions.query")._parser.cache_clear()
    with pytest.raises(ImportError, match=r"nrm\[query\]"):
        nrm.query("fin", SETS)


# ---- sequences -------------------------------------------------------------------------------------------------------


def test_any_of_many_steps() -> None:
    """A set of several steps is an event; there is no bound on how many, and it can be a condition."""
    R = nrm.measure(Fused(layer("lstm", batch_first=True)), torch.randn(2, 12, 3).double(), target=1)
    h = R["rnn"]
    steps = [h.step(t) for t in range(12)]
    many = h.step(list(range(12)))
    close(R(many), R(nrm.visits(*steps)))
    close(R(h.step([2, 5])), R(steps[2]) + R(steps[5]) - R(steps[2], steps[5]))
    close(R(steps[3], given=h.step([2, 5])), R(steps[3], h.step([2, 5])) / R(h.step([2, 5])))
    close(R(R.input, h.step([2, 5])), R(R.input, nrm.visits(steps[2]) | nrm.visits(steps[5])))
    close(R(h.steps, nrm.visits(steps[4]))[:, 7], R(steps[7], steps[4]))
    close(R(nrm.visits(h.step([[2], [5]]))), torch.stack([R(steps[2])[0], R(steps[5])[1]]))
    close(R(nrm.visits(steps[2].layer.channel(1)) & ~nrm.visits(steps[9].layer.channel([0, 1]))),
          R(steps[2].layer.channel(1)) - R(steps[2].layer.channel(1), steps[9].layer.channel([0, 1])))  # fmt: skip


def test_slices_of_a_sequence_in_different_states() -> None:
    """A loop reads the input step by step, and its steps send back messages in different states."""
    R = nrm.measure(Loop("lstm", Fused(layer("lstm", batch_first=True))), torch.randn(2, 4, 3).double(), target=1)
    x, h, begin = R.input, nrm.layer("cell").step(2), R.input[0]
    apart = R(x, h) + R(x, begin) - 2 * R(x, h, begin)
    close(R(x, nrm.visits(h) ^ nrm.visits(begin)), apart)


def test_weights_have_the_precision_of_the_measure(R: nrm.Measure, three: list[nrm.Set]) -> None:
    low = R["relu1"]
    for third in (1 / 3, [1 / 3], torch.tensor(1.0).double() / 3):
        close(R.expect({low: third}), R(low.all) / 3)
    close(R.expect({low: True, three[2]: 2}), R(low.all) + 2 * R(three[2]))
    close(R.expect({low.channel(1): 0.1}, given=three[2]), 0.1 * R(low.channel(1), given=three[2]))


def test_additive_relevance_of_a_level_is_that_of_its_last_tensor(R: nrm.Measure) -> None:
    stem, relu = R["stem"].channel(1), R["relu1"].channel(1)
    with pytest.warns(nrm.NrmWarning, match=r"stem\.channel\(1\) has additive relevance 0.*'relu1'"):
        assert torch.equal(R.additive(stem), torch.zeros(2).double())
    close(R.additive(stem, relu), R.additive(relu))
    assert torch.equal(R.additive(R["stem"].channel([])), torch.zeros(2).double())


def test_additive_relevance_takes_one_sweep_of_two_messages(
    R: nrm.Measure, three: list[nrm.Set], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of sets and layers: walks that have been counted, and those that have not."""
    R(R.input)
    pull, steps, widths = Network.pull, [], set()

    def watched(self: Network, i: int, arrivals: Arrivals) -> Any:
        steps.append(i)
        widths.update(len(message) for message in arrivals.tensors)
        return pull(self, i, arrivals)

    monkeypatch.setattr(Network, "pull", watched)
    heat = R.additive(*three, R["relu2"].channel(1), R["/mean"].channel([0, 3]), at=R.input)
    assert heat.shape == (2, 2, 6, 6)
    assert len(steps) == len(set(steps)) > 3
    assert max(widths) == 2


def test_additive_relevance_of_steps() -> None:
    R = nrm.measure(Fused(layer("gru", batch_first=True)), torch.randn(2, 4, 3).double(), target=1)
    h = R["rnn"]
    close(R.additive(h.step([0, 2])), R.additive(h.step(0), h.step(2)))
    close(R.additive(h.step(0), h.step(2)), R.additive(h.step(0)) + R.additive(h.step(2)))

"""Bad input has a clear text (what, where, got, expected, try), and nothing is changed by it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nrm


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)
    )


def image() -> Tensor:
    return torch.rand(2, 2, 6, 6, generator=torch.Generator().manual_seed(0))


def parts(error: nrm.NrmError) -> dict[str, str]:
    """The text of an error by its parts."""
    found = {"what": str(error).splitlines()[0]}
    for line in str(error).splitlines()[1:]:
        match = re.fullmatch(r"  (where|got|expected|try): +(.*)", line)
        if match:
            found[match[1]] = match[2]
    return found


def refused(kind: type[nrm.NrmError], act: Callable[[], Any], **texts: str) -> None:
    """The act raises this error, and each named part of its text matches."""
    with pytest.raises(kind) as caught:
        act()
    found = parts(caught.value)
    for name, pattern in {"what": r"\w", **texts}.items():
        key = name.rstrip("_")
        assert key in found, f"no {key!r} in:\n{caught.value}"
        assert re.search(pattern, found[key]), f"{pattern!r} is not in {key}: {found[key]!r}"
    assert len(found) >= 2, f"only a complaint, no help:\n{caught.value}"


# ---- questions -------------------------------------------------------------------------------------------------------

QUESTIONS: dict[str, tuple[Callable[[nrm.Measure], Any], dict[str, str]]] = {
    "unknown layer": (lambda R: R["Conv"], {"what": "unknown layer 'Conv'", "try_": "R.layers"}),
    "near name": (lambda R: R["inputs"], {"expected": "'input'"}),
    "a layer by number": (lambda R: R[0], {"what": "known by its name", "got": "0", "expected": "text"}),
    "no match": (lambda R: R.find("conv*"), {"what": r"conv\*", "try_": "R.layers"}),
    "input of what has none": (lambda R: R(R["input"].input), {"what": "unknown layer"}),
    "no call": (lambda R: R["0#3"], {"what": "no call 3|unknown layer"}),
    "no edge": (lambda R: R.edge("0", "5"), {"what": "no such edge", "got": "0 -> 5", "expected": "'1'"}),
    "no skip": (lambda R: R(R["2"].skip), {"what": "no single skip", "try_": r"R\.edge"}),
    "no bias": (lambda R: R["1.bias"], {"what": "no bias", "try_": "R.biases"}),
    "cut through an edge": (lambda R: R.cut(R.edge("0", "1")), {"what": "a cut goes through a tensor"}),
    "nothing asked": (lambda R: R(), {"what": "nothing was asked", "try_": r"R\("}),
    "a name as argument": (
        lambda R: R("1"),
        {"what": "not something that can be asked", "got": "str", "expected": "R"},
    ),
    "a number as argument": (lambda R: R(R["1"], 3), {"got": "int: 3"}),
    "a name as condition": (lambda R: R(R["1"], given="3"), {"got": "str"}),
    "channel out of range": (
        lambda R: R(R["1"].channel(3)),
        {"what": "1.channels.*no such", "got": "3", "expected": "2"},
    ),
    "negative out of range": (lambda R: R(R["1"].channel(-4)), {"got": "-4", "expected": "2"}),
    "one of several channels": (lambda R: R(R["1"].channel([0, 7])), {"got": "7"}),
    "position out of range": (lambda R: R(R["1"].position((0, 6))), {"got": r"\(0, 6\)", "expected": r"\(5, 5\)"}),
    "position with too few": (lambda R: R(R["1"].position((0,))), {"got": "0", "expected": r"\(5, 5\)"}),
    "index out of range": (lambda R: R(R["1"][3]), {"got": r"\[3\]", "expected": r"\(3, 6, 6\)"}),
    "too many indices": (lambda R: R(R["1"][0, 0, 0, 0]), {"what": "index", "expected": r"\(3, 6, 6\)"}),
    "block out of range": (lambda R: R(R["1"].channels[9]), {"got": "9", "expected": "2"}),
    "chosen out of range": (lambda R: R(R["1"].channels[[0, 9]]), {"got": "9", "expected": "2"}),
    "too many axes chosen": (lambda R: R(R["1"].channels[:, :]), {"what": "too many indices", "got": "2"}),
    "axis out of range": (
        lambda R: R(R["1"].axis(3)),
        {"what": "no axis 3", "got": r"\(3, 6, 6\)", "expected": "0 to 2"},
    ),
    "axis twice": (lambda R: R(R["1"].axis(0, -3)), {"what": "twice"}),
    "float index": (lambda R: R["1"].channel(1.0), {"what": "not an integer", "got": r"1\.0"}),
    "bool index": (lambda R: R["1"].channel(True), {"what": "not an integer"}),
    "text index": (lambda R: R["1"]["a"], {"what": "not an integer", "got": "'a'"}),
    "sets per sample": (
        lambda R: R(R["1"].channel([[0], [1], [2]])),
        {"got": "3", "expected": "2 lists, one set per sample"},
    ),
    "mask of wrong shape": (
        lambda R: R(R["1"].where(torch.ones(5) > 0)),
        {"got": r"\(5,\)", "expected": r"\(3, 6, 6\)"},
    ),
    "mask of floats": (lambda R: R(R["1"].where(torch.rand(6))), {"what": "mask.*booleans", "got": "float32"}),
    "mask of nonsense": (lambda R: R["1"].where(["a", "b"]), {"what": "mask", "got": "'a'"}),
    "mask as channels": (lambda R: R["1"].channel(torch.ones(3, 6) > 0), {"try_": r"where\(mask\)"}),
    "labels of wrong shape": (
        lambda R: R(R["1"].groups(torch.zeros(4, 6).long())),
        {"got": r"\(4, 6\)", "expected": r"\(2, 3, 6, 6\)"},
    ),
    "labels of floats": (lambda R: R(R["1"].groups(torch.zeros(6))), {"what": "label map.*integers", "got": "float"}),
    "labels below -1": (lambda R: R(R["1"].groups(torch.full((6,), -2))), {"got": "-2", "expected": "-1"}),
    "labels without groups": (lambda R: R(R["1"].groups(torch.full((6,), -1))), {"what": "no groups"}),
    "left-out group": (lambda R: R(R["1"].group(torch.arange(6), -1)), {"got": "-1", "expected": "5"}),
    "no such sample": (lambda R: R.sample(2), {"what": "no such sample", "got": "2", "expected": "0 to 1"}),
    "activations of a partition": (lambda R: R.values(R["1"].channels), {"what": "not a layer"}),
    "excluded output": (lambda R: R(R.output[1]), {"what": "target excludes", "where": "sample 0", "try_": "softmax"}),
}


@pytest.fixture(scope="module")
def R() -> nrm.Measure:
    return nrm.measure(network(), image(), target=0)


@pytest.mark.parametrize("name", QUESTIONS)
def test_bad_questions(name: str, R: nrm.Measure) -> None:
    before = R(R.input)
    refused(nrm.QuestionError, lambda: QUESTIONS[name][0](R), **QUESTIONS[name][1])
    assert torch.equal(R(R.input), before)


def test_a_value_that_does_not_fit_names_both_shapes() -> None:
    event = nrm.layer("1").where(torch.ones(3, 6, 6) > 0)
    R = nrm.measure(network()[:2].append(nn.Flatten()), torch.rand(1, 2, 8, 8), target=0)
    refused(nrm.QuestionError, lambda: R(event), got=r"\(3, 6, 6\)", expected=r"\(3, 8, 8\)")


def test_calls_are_listed() -> None:
    cell = nn.Linear(3, 3)
    R = nrm.measure(nn.Sequential(cell, nn.Tanh(), cell), torch.rand(1, 3))
    ask = {"what": "called 2 times", "expected": "'0#0', '0#1'", "try_": "'0#0'.*steps"}
    refused(nrm.QuestionError, lambda: R(R["0"]), **ask)
    refused(nrm.QuestionError, lambda: R(R["0"].channels), **ask)
    refused(nrm.QuestionError, lambda: R["0#2"], what="no call 2", expected="0 to 1")


# ---- targets and options ---------------------------------------------------------------------------------------------

CALLS: dict[str, tuple[type[nrm.NrmError], dict[str, Any], dict[str, str]]] = {
    "target too large": (nrm.QuestionError, {"target": 5}, {"what": "out of range", "got": "5", "expected": "0 to 4"}),
    "one target too large": (nrm.QuestionError, {"target": [0, 9]}, {"got": r"9 \(sample 1\)", "expected": "0 to 4"}),
    "negative class": (nrm.QuestionError, {"target": -1}, {"got": "-1", "expected": "0 to 4"}),
    "float target": (
        nrm.QuestionError,
        {"target": 1.0},
        {"what": "class index", "got": "float", "expected": "integer"},
    ),
    "float targets": (nrm.QuestionError, {"target": torch.rand(2)}, {"what": "class index", "got": "float"}),
    "bool target": (nrm.QuestionError, {"target": True}, {"what": "class index", "got": "bool"}),
    "target of nonsense": (nrm.QuestionError, {"target": {"a": 1}}, {"what": "class index", "expected": "softmax"}),
    "too many targets": (nrm.QuestionError, {"target": [0, 1, 2]}, {"got": r"\(3,\)", "expected": "2 of them"}),
    "nested targets": (nrm.QuestionError, {"target": [[0], [1]]}, {"got": r"\(2, 1\)", "expected": "2 of them"}),
    "tuple too long": (
        nrm.QuestionError,
        {"target": (0, 1)},
        {"what": "1 axis", "got": r"\(0, 1\)", "try_": "one per sample"},
    ),
    "unknown spread": (nrm.QuestionError, {"target": "logit"}, {"what": "unknown target 'logit'", "try_": "'logits'"}),
    "set of another layer": (
        nrm.QuestionError,
        {"target": nrm.layer("1")[0]},
        {"what": "set of outputs", "got": "nrm.layer"},
    ),
    "set out of range": (nrm.QuestionError, {"target": nrm.output[9]}, {"got": r"\[9\]", "expected": r"\(5,\)"}),
    "bias": (
        nrm.QuestionError,
        {"bias": "inputs"},
        {"what": "bias='inputs'", "expected": "'ignore'", "try_": "'input'"},
    ),
    "zero": (nrm.QuestionError, {"zero": "sinks"}, {"what": "zero='sinks'", "expected": "'uniform'", "try_": "'sink'"}),
    "normalize": (nrm.QuestionError, {"normalize": 1}, {"what": "normalize=1", "expected": "True"}),
    "memory": (nrm.QuestionError, {"memory": "lots"}, {"what": "memory", "got": "'lots'", "expected": "GiB"}),
    "memory below 0": (nrm.QuestionError, {"memory": -1}, {"got": "-1"}),
    "unknown composite": (
        nrm.RuleError,
        {"rules": "epsilon-plus-flt"},
        {"what": "unknown composite", "try_": "'epsilon-plus-flat'"},
    ),
    "rules of nonsense": (nrm.RuleError, {"rules": 3}, {"what": "not rules", "got": "int", "expected": "composite"}),
    "rule for nobody": (
        nrm.RuleError,
        {"rules": {"conv9": nrm.ZPlus()}},
        {"what": "no layer matches", "expected": "pattern"},
    ),
    "not a rule": (nrm.RuleError, {"rules": {"0": "zplus"}}, {"what": "'0'", "got": "zplus"}),
    "a class for a rule": (
        nrm.RuleError,
        {"rules": {"0": nrm.ZPlus}},
        {"what": "not a rule", "expected": r"ZPlus\(\)"},
    ),
    "labels": (nrm.QuestionError, {"labels": ["a"]}, {"what": "by layer", "got": "list", "expected": "output"}),
    "labels of an unknown layer": (
        nrm.QuestionError,
        {"labels": {"outputs": "abcde"}},
        {"where": "outputs", "expected": "'output'|'input'"},
    ),
    "too few labels": (
        nrm.QuestionError,
        {"labels": {"output": ["a", "b"]}},
        {"where": "output", "got": "2", "expected": r"\(5,\)"},
    ),
    "a text for labels": (
        nrm.QuestionError,
        {"labels": {"output": "abcde"}},
        {"what": "list of names", "got": "abcde"},
    ),
    "output key": (nrm.CaptureError, {"output": "logits"}, {"what": "no 'logits'", "got": "tensor", "try_": "lambda"}),
    "no sample axis": (
        nrm.CaptureError,
        {"batch_dim": 4},
        {"what": "no axis 4", "got": r"\(2, 2, 6, 6\)", "try_": "batch_dim=None"},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_options(name: str) -> None:
    kind, options, texts = CALLS[name]
    model, x = network(), image()
    state, versions = copy.deepcopy(model.state_dict()), [p._version for p in model.parameters()]
    refused(kind, lambda: nrm.measure(model, x, **options), **texts)
    assert [p._version for p in model.parameters()] == versions
    assert all(torch.equal(model.state_dict()[k], v) for k, v in state.items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_an_unknown_option_is_named_with_the_nearest_one() -> None:
    refused(nrm.QuestionError, lambda: nrm.measure(network(), image(), rule="lrp-0"),  # type: ignore[call-arg]
            got="rule='lrp-0'", expected="normalize", try_="rules=")  # fmt: skip


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "make",
    [
        lambda: nrm.AlphaBeta(1, 1), lambda: nrm.AlphaBeta(2, -1), lambda: nrm.AlphaBeta(INF, 1),
        lambda: nrm.AlphaBeta(2, NAN), lambda: nrm.AlphaBeta("2", "1"), lambda: nrm.AlphaBeta(True, False),
        lambda: nrm.Gamma(-0.1), lambda: nrm.Gamma(INF), lambda: nrm.Gamma(NAN), lambda: nrm.Gamma("a"),
        lambda: nrm.Gamma(None), lambda: nrm.Gamma(0.25 + 1j), lambda: nrm.Gamma([0.25]),
        lambda: nrm.Epsilon("x"), lambda: nrm.Epsilon(-1e-6), lambda: nrm.Epsilon(INF), lambda: nrm.Epsilon(NAN),
        lambda: nrm.EntryEpsilon(-1), lambda: nrm.EntryEpsilon("x"), lambda: nrm.EntryEpsilon(INF),
        lambda: nrm.ZBox("0", 1), lambda: nrm.ZBox(0, INF), lambda: nrm.ZBox(NAN), lambda: nrm.ZBox(1, -1),
        lambda: nrm.ZBox(torch.tensor([0.0, NAN]), 1), lambda: nrm.ZBox(0, torch.tensor([1.0, -1.0])),
        lambda: nrm.Product(gate="half"), lambda: nrm.Product(signal=INF), lambda: nrm.Product(shares=(1, NAN)),
        lambda: nrm.Product(shares="11"), lambda: nrm.Product(shares=()), lambda: nrm.Sum(alpha=1.0),
        lambda: nrm.Sum(alpha=(1, "x")), lambda: nrm.Sum(alpha={"skip": NAN}), lambda: nrm.Sum(rule="zplus"),
    ],
)  # fmt: skip
def test_bad_rules_are_refused_when_they_are_made(make: Callable[[], Any]) -> None:
    with pytest.raises(nrm.RuleError) as caught:
        make()
    assert caught.value.expected is not None


def test_numbers_of_rules_may_be_of_any_kind() -> None:
    assert nrm.Gamma(np.float32(0.5)).gamma == nrm.Gamma(0.5).gamma
    assert nrm.Gamma(1) == nrm.Gamma(1.0)
    assert nrm.Sum(alpha=[1, 2]) == nrm.Sum(alpha=(1.0, 2.0))
    assert nrm.Product(shares=[0, 1]) == nrm.Product(shares=(0, 1))
    assert nrm.ZBox(torch.zeros(3), 1).low is not None


@pytest.mark.parametrize(
    ("target", "signs"), [("logits", [-1.0, -2.0]), ("logits", [1.0, -1.0]), (nrm.output[1], [1.0, -1.0])]
)
def test_outputs_without_a_positive_sum_cannot_be_shared(target: Any, signs: list[float]) -> None:
    model = nn.Linear(1, 2, bias=False)
    model.weight.data.copy_(torch.tensor(signs)[:, None])
    refused(nrm.MassError, lambda: nrm.measure(model, torch.ones(1, 1), target=target),
            what="positive sum", where="sample 0", got=r"^-?\d", try_="softmax")  # fmt: skip
    assert nrm.measure(model, torch.ones(1, 1), target="softmax")(nrm.output).shape == (1, 2)


# ---- models and inputs -----------------------------------------------------------------------------------------------


def broken(model: nn.Module, value: float) -> nn.Module:
    model[2].weight.data[0, 0, 0, 0] = value  # type: ignore[index,operator,union-attr]
    return model


def with_value(x: Tensor, value: float) -> Tensor:
    x[0, 0, 0, 0] = value
    return x


class Odd(nn.Module):
    """A network with one step of its own."""

    def __init__(self, step: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self.inner(x))


class Casting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float() * 2


MODELS: dict[str, tuple[Callable[[], tuple[Any, Any]], dict[str, str]]] = {
    "NaN in the input": (lambda: (network(), with_value(image(), float("nan"))), {"what": "NaN", "got": "1"}),
    "inf in the input": (lambda: (network(), with_value(image(), float("inf"))), {"what": "inf", "got": "1"}),
    "NaN in a weight": (lambda: (broken(network(), float("nan")), image()), {"what": "NaN", "where": "'2'"}),
    "inf in a weight": (lambda: (broken(network(), float("inf")), image()), {"what": "NaN|inf", "where": "'2'"}),
    "NaN in an activation": (
        lambda: (Odd(lambda h: torch.sqrt(-1 - h.abs())), torch.rand(1, 3)),
        {"what": "NaN", "where": "sqrt"},
    ),
    "no model": (lambda: (3, image()), {"what": "not a model", "got": "int", "expected": "Module"}),
    "a function": (lambda: (torch.relu, image()), {"what": "not a model"}),
    "training mode": (
        lambda: (nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), torch.rand(1, 3)),
        {"what": "training", "where": "Dropout", "try_": "eval"},
    ),
    "batch norm in training": (
        lambda: (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), torch.rand(2, 3)),
        {"what": "training", "where": "BatchNorm"},
    ),
    "scripted": (
        lambda: (torch.jit.trace(nn.Linear(3, 2), torch.rand(1, 3)), torch.rand(1, 3)),
        {"what": "scripted", "try_": "Python module"},
    ),
    "meta weights": (lambda: (nn.Linear(3, 2, device="meta"), torch.rand(1, 3)), {"what": "meta", "where": "weight"}),
    "meta input": (lambda: (nn.Linear(3, 2), torch.rand(1, 3, device="meta")), {"what": "meta|devices"}),
    "complex input": (lambda: (nn.Linear(3, 2), torch.rand(1, 3) * 1j), {"what": "complex", "expected": "real"}),
    "sparse input": (lambda: (nn.Linear(3, 2), torch.eye(3).to_sparse()), {"what": "sparse", "expected": "dense"}),
    "integer input": (lambda: (Casting(), torch.ones(1, 3).long()), {"what": "integers", "expected": "embedding"}),
    "no input": (lambda: (nn.Linear(3, 2), ()), {"what": "no tensor", "expected": "tensor"}),
    "empty batch": (lambda: (nn.Linear(3, 2), torch.rand(0, 3)), {"what": "empty", "got": r"\(0, 3\)"}),
    "no path": (
        lambda: (Odd(lambda h: torch.tensor(h.detach().numpy())), torch.rand(1, 3)),
        {"what": "lost|does not depend", "expected": "numpy"},
    ),
    "unsupported op": (lambda: (Odd(torch.fft.rfft), torch.rand(1, 3)), {"what": "float tensor|fft"}),
    "unknown op": (
        lambda: (Odd(lambda h: torch.linalg.inv(torch.diag_embed(h)).sum(-1)), torch.rand(1, 3)),
        {"what": "linalg_inv|inv", "where": r"test_errors\.py:\d+", "try_": "register"},
    ),
    "several outputs": (
        lambda: (Odd(lambda h: (h, h + 1)), torch.rand(1, 3)),
        {"what": "several outputs", "try_": "output="},
    ),
    "integer output": (lambda: (Odd(lambda h: h.argmax(1)), torch.rand(1, 3)), {"what": "float tensor|lost"}),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("name", MODELS)
def test_bad_models_and_inputs(name: str) -> None:
    make, texts = MODELS[name]
    model, x = make()
    state = torch.get_rng_state()
    refused(nrm.CaptureError, lambda: nrm.measure(model, x), **texts)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_devices_must_match() -> None:
    refused(nrm.CaptureError, lambda: nrm.measure(network().cuda(), image()), what="devices", got="cuda", try_="to")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_wrapped_models_are_unwrapped() -> None:
    model, x = network(), image()
    right = nrm.measure(model, x)(nrm.input)
    for wrapped in (nn.DataParallel(model), torch.compile(model)):
        assert torch.equal(nrm.measure(wrapped, x)(nrm.input), right)


def test_errors_in_the_model_itself_are_the_models() -> None:
    def fail(h: Tensor) -> Tensor:
        raise ZeroDivisionError("mine")

    model = Odd(fail)
    with pytest.raises(ZeroDivisionError, match="mine"):
        nrm.measure(model, torch.rand(1, 3))
    assert not nn.modules.module._global_forward_hooks
    with pytest.raises(RuntimeError, match=r"shapes|size"):
        nrm.measure(nn.Linear(3, 2), torch.rand(1, 4))


# ---- afterwards ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["weight", "bias", "step", "load"])
def test_changed_weights_are_noticed(change: str) -> None:
    model, x = network(), image()
    R = nrm.measure(model, x, rules="lrp-0")
    R(R.input)
    if change == "step":
        F.cross_entropy(model(x), torch.zeros(2).long()).backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
    elif change == "load":
        model.load_state_dict(network().state_dict())
    else:
        with torch.no_grad():
            getattr(model[2], change).add_(1)
    for ask in (lambda: R(R.input), R.check, lambda: R.layers, R.describe):
        refused(nrm.NrmError, ask, what="weights have changed", where="layer '", try_="measure again")


def test_replaced_weights_do_not_matter() -> None:
    model, x = network(), image()
    R = nrm.measure(model, x)
    before = R(R.input)
    model[2].weight = nn.Parameter(torch.zeros_like(model[2].weight))
    R.release()
    assert torch.equal(R(R.input), before)


def test_conditions_that_cancel() -> None:
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 1, bias=False)).double()
    model[0].weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))

    def given(difference: float) -> Tensor:
        model[1].weight.data.copy_(torch.tensor([[1.0 + difference, -1.0, 1.0]], dtype=torch.float64))
        R = nrm.measure(model, torch.ones(1, 2).double(), rules="lrp-0")
        return R(R.input, given=R["0"][:2])

    with pytest.warns(nrm.NrmWarning, match=r"0\.1 % of the total variation"):
        torch.testing.assert_close(given(1e-5).sum(), torch.tensor(1.0).double())
    refused(nrm.PrecisionError, lambda: given(4e-15), what="lost in rounding", expected="cancel", try_="larger set")
    assert torch.count_nonzero(given(0.0)) == 0


def test_the_form_of_an_error() -> None:
    error = nrm.QuestionError("what", got="g", expected="e", hint="h").at("w")
    assert str(error) == "what\n  where:    w\n  got:      g\n  expected: e\n  try:      h"
    assert error.at("elsewhere").where == "w"
    assert issubclass(nrm.QuestionError, nrm.NrmError)

"""Questions and plans as values: read once, printed, compared, handed to every measure; without tensors."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.measure import Average, Planner
from nrm.questions import Plan, Question
from nrm.steps import Network


class Net(nn.Module):
    """A recurrent layer between two others, so that there are steps beside tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.cell, self.out = nn.Linear(3, 4), nn.RNNCell(4, 5), nn.Linear(5, 3)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 5, dtype=x.dtype)
        for t in range(x.shape[1]):
            state = self.cell(self.relu(self.inp(x[:, t])), state)
        return self.out(state)


@pytest.fixture(scope="module")
def R() -> nrm.Measure:
    torch.manual_seed(0)
    return nrm.measure(Net().double(), torch.rand(2, 4, 3, dtype=torch.float64), rules="lrp-0")


Ask = Callable[[Any, nrm.Measure], Any]

ASKED: dict[str, Ask] = {
    "layer": lambda ask, R: ask(R.input),
    "pair": lambda ask, R: ask(R["out"].channels, R.input),
    "set": lambda ask, R: ask(R.input[1]),
    "condition": lambda ask, R: ask(R.input, given=R["cell"].step(2)),
    "free condition": lambda ask, R: ask(R.input.axis(0), given=R["cell"].step(2).layer.channels[:2]),
    "steps": lambda ask, R: ask(R["cell"].steps, R.input.axis(0)),
    "pairs of steps": lambda ask, R: ask(R["cell"].steps, R["relu"].steps),
    "stack": lambda ask, R: ask(R.input.axis(0), nrm.stack(R["cell"].step(1).layer, R["cell"].step(2).layer)),
    "stacks": lambda ask, R: ask(nrm.stack(R["cell"].step(1).layer, R.input), nrm.stack(R["cell"].step(3).layer)),
    "formula": lambda ask, R: ask(nrm.visits(R.input[1]) & ~nrm.visits(R["cell"].step(1)), R["out"].channels),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_plan_has_the_shape_of_the_answer(R: nrm.Measure, name: str) -> None:
    plan, answer = ASKED[name](R.plan, R), ASKED[name](R, R)
    assert plan.shape == tuple(answer.shape)
    assert len(plan.axes) == len(plan.shape)
    assert plan.flops > 0
    assert "forward passes" in repr(plan)


def test_every_kind_that_is_planned_can_be_asked() -> None:
    kinds = {name for name in vars(Planner) if not name.startswith("_")}
    assert kinds >= {"additive", "dividends", "expect"}
    for asked in (nrm.Measure, nrm.Difference, Average):
        assert kinds <= set(dir(asked)), f"{asked.__name__} does not know every kind of question"


def test_every_kind_of_question_has_a_plan(R: nrm.Measure) -> None:
    R(R.input)  # plans do not count a base sweep that is kept, here as in the difference below
    a, b = R.input[1], R["cell"].step(2).layer.channel([0, 3])
    kinds = [
        (R.plan.dividends(a, b), R.dividends(a, b)),
        (R.plan.expect({a: 2.0, b.layer: torch.rand(5)}, R["out"].channels), R.expect({a: 2.0}, R["out"].channels)),
        (R.plan.additive(a, b, at=R.input), R.additive(a, b, at=R.input)),
        (R.plan.additive(b.layer.channels, layers=[b.layer]), R.additive(b.layer.channels, layers=[b.layer])),
    ]
    for plan, answer in kinds:
        assert plan.shape == tuple(answer.shape)
        assert plan.passes > 0
    D = R - nrm.measure(Net().double(), torch.rand(2, 4, 3, dtype=torch.float64), rules="lrp-0")
    D(R.input)
    assert D.plan.dividends(a, b).flops == pytest.approx(2 * kinds[0][0].flops)
    assert {line.what.partition(":")[0] for line in D.plan.additive(a, b).lines} == {"first", "second"}


def test_the_condition_is_part_of_a_plan(R: nrm.Measure) -> None:
    R(R.input)
    joint = R.plan(R.input, R["cell"].step(2))
    whole = R.plan(R.input, given=R["cell"].step(2))
    assert whole.lines[: len(joint.lines)] == joint.lines
    assert all(line.what.startswith("condition: ") for line in whole.lines[len(joint.lines) :])
    assert len(whole.lines) > len(joint.lines)


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        return [t for f in dataclasses.fields(value) for t in tensors_in(getattr(value, f.name))]
    return [t for item in value for t in tensors_in(item)] if isinstance(value, tuple | list) else []


@pytest.mark.parametrize("name", ASKED)
def test_plans_are_values_without_tensors(R: nrm.Measure, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    R(R.input)
    if name != "condition":
        monkeypatch.setattr(Network, "pull", None)  # nothing is carried
    plan = ASKED[name](R.plan, R)
    assert isinstance(plan, Plan)
    assert not tensors_in(plan)
    assert pickle.loads(pickle.dumps(plan)) == plan == ASKED[name](R.plan, R)


def test_questions_are_values_that_every_measure_answers(R: nrm.Measure) -> None:
    other = nrm.measure(Net().double(), torch.rand(2, 4, 3, dtype=torch.float64), rules="lrp-0")
    question = Question.read([R["out"].channels, nrm.input], given=nrm.layer("cell").step(2))
    assert question == Question.read([R["out"].channels, nrm.input], given=[nrm.layer("cell").step(2)])
    assert hash(question) == hash(pickle.loads(pickle.dumps(question)))
    assert not tensors_in(question)
    assert str(question) == "out.channels, input | cell.step(2)"
    assert question.events == (nrm.layer("cell").step(2),)
    assert question.axes == (R["out"].channels, nrm.input)
    for one in (R, other, R - other):
        assert torch.equal(one.ask(question), one(R["out"].channels, nrm.input, given=nrm.layer("cell").step(2)))


def test_questions_say_how_walks_count() -> None:
    a, b = nrm.layer("a"), nrm.layer("b")
    assert str(Question.combinations([a.channel(1), b.channel(2)])) == "all combinations of a.channel(1), b.channel(2)"
    assert str(Question.weighted({a: 1.0}, [b.channels], None)) == "weights of a with b.channels"
    assert Question.weighted({a: [1, 2]}, [], None) == Question.weighted({a: [1.0, 2.0]}, [], None)
    assert Question.weighted({a: [1, 2]}, [], None) != Question.weighted({a: [1, 3]}, [], None)


def test_weights_over_a_stack_are_weights_over_its_parts(R: nrm.Measure) -> None:
    low, high = R["cell"].step(1).layer, R["cell"].step(2).layer
    weights = {R.input[1]: 1.0, low.channel(3): -2.0}
    table = R.expect(weights, nrm.stack(low, high))
    torch.testing.assert_close(table, torch.cat([R.expect(weights, low), R.expect(weights, high)], 1))

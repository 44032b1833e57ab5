"""Lift and excess: shapes, conditions, what is refused, and flows ranked by them."""

from __future__ import annotations

import importlib
import math
import warnings

import pytest
import torch
from torch import Tensor, nn

import nrm

LIFT = importlib.import_module("nrm.measure.lift")


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Conv2d(5, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3)]
    for layer in layers[::2]:
        if hasattr(layer, "weight"):
            layer.weight.data = layer.weight.data.abs()  # every channel is alive
    return nn.Sequential(*layers).double().eval()


def measured(rules: object = None, batch: int = 2, **options: object) -> nrm.Measure:
    x = torch.rand(batch, 2, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    given = {"rules": nrm.ZPlus() if rules is None else rules, "target": 0, "bias": "ignore", **options}
    return nrm.measure(network(), x, **given)  # type: ignore[arg-type]


def outer(*marginals: Tensor) -> Tensor:
    product = marginals[0]
    for marginal in marginals[1:]:
        product = (
            product[..., None] * marginal[:, None]
            if product.ndim == 2
            else product[..., None] * marginal[:, None, None]
        )
    return product


def test_three_parts_and_sets_have_a_factor_each() -> None:
    R = measured()
    x, a, b = R.input.channels, R["1"].channels, R["3"].channels
    product = outer(R(x), R(a), R(b))
    torch.testing.assert_close(R.lift(x, a, b, form="excess"), R(x, a, b) - product)
    torch.testing.assert_close(R.lift(x, a, b), R(x, a, b) / product)
    one = R["1"].channel(2)
    torch.testing.assert_close(R.lift(one, b), R(one, b) / (R(one)[:, None] * R(b)))
    event = nrm.visits(R["1"].channel(2), R["3"].channel(1))
    torch.testing.assert_close(R.lift(event, x), R(event, x) / (R(event)[:, None] * R(x)))


def test_conditions_hold_for_joint_and_marginals() -> None:
    R = measured()
    x, a, b = R.input.channels, R["1"].channels, R["3"]
    fixed = b.channel(1)
    joint, product = R(x, a, given=fixed), outer(R(x, given=fixed), R(a, given=fixed))
    torch.testing.assert_close(R.lift(x, a, given=fixed, form="excess"), joint - product)
    joint = R(x, a, given=b.channels)  # axes of conditions come last
    product = R(x, given=b.channels)[:, :, None] * R(a, given=b.channels)[:, None]
    torch.testing.assert_close(R.lift(x, a, given=b.channels), joint / product)


def test_the_excess_adds_up_to_nothing_over_a_cut() -> None:
    R = measured()
    excess = R.lift(R["1"].channels, R["3"].channels, form="excess")
    torch.testing.assert_close(excess.sum(1), torch.zeros(2, 4).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(excess.sum(2), torch.zeros(2, 5).double(), atol=1e-12, rtol=0)


def test_a_part_without_relevance_has_no_lift_but_an_excess() -> None:
    model = network()
    model[0].weight.data[2] = 0  # type: ignore[index, union-attr, operator]
    model[0].bias.data[2] = 0  # type: ignore[index, union-attr, operator]
    R = nrm.measure(model, torch.rand(1, 2, 8, 8).double(), rules=nrm.ZPlus(), target=0, bias="ignore")
    lift = R.lift(R["1"].channels, R["3"].channels)
    assert bool(lift[:, 2].isnan().all())
    assert not bool(lift[:, [0, 1, 3, 4]].isnan().any())
    assert float(R.lift(R["1"].channels, R["3"].channels, form="excess")[:, 2].abs().max()) == 0


def test_marginals_that_cancel_are_told() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 1, bias=False)).double()
    model[0].weight.data = torch.eye(3).double()
    model[1].weight.data = torch.tensor([[1.0, -0.9999, 1.0]]).double()
    R = nrm.measure(model, torch.ones(1, 3).double(), rules="lrp-0")
    groups = R["0"].groups(torch.tensor([0, 0, 1]))  # two neurons of opposite signs, and one
    with pytest.warns(nrm.NrmWarning, match=r"1 of 2 marginals of 0\.groups.* are below 0\.1 %"):
        R.lift(R.input, groups)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        R.lift(R.input, groups, form="excess")
    model[1].weight.data = torch.tensor([[1.0, -1.0, 1.0]]).double()
    R = nrm.measure(model, torch.ones(1, 3).double(), rules="lrp-0")
    assert bool(R.lift(R.input, groups)[:, :, 0].isnan().all())


def test_what_has_no_lift_is_refused() -> None:
    R = measured()
    a, b = R["1"].channels, R["3"].channels
    with pytest.raises(nrm.QuestionError, match="several parts"):
        R.lift(a)
    with pytest.raises(nrm.QuestionError, match="unknown form"):
        R.lift(a, b, form="ratio")
    with pytest.raises(nrm.QuestionError, match="unknown by"):
        R.flows(a, b, by="size")
    with pytest.raises(nrm.QuestionError, match="least is for flows ranked by lift"):
        R.flows(a, b, least=0.1)
    with pytest.raises(nrm.QuestionError, match="not a share"):
        R.flows(a, b, by="lift", least=2)
    with pytest.raises(nrm.QuestionError, match="exactly"):
        R.flows(a, b, by="lift", method="greedy")
    with pytest.raises(nrm.QuestionError, match="several parts"):
        R.flows(a, by="lift")
    with pytest.raises(nrm.QuestionError, match="normalized"):
        measured(normalize=False).lift(a, b)
    with pytest.raises(nrm.QuestionError, match="a difference has no lift"):
        (measured() - measured()).lift(a, b)


@pytest.mark.parametrize("memory", ["2 GiB", 6000])
@pytest.mark.parametrize("by", ["lift", "excess"])
def test_flows_by_lift_are_the_largest_of_the_table(by: str, memory: object) -> None:
    R = measured(memory=memory)
    x, a, b = R.input.channels, R["1"].channels[[4, 0, 2]], R["3"].channels
    values, joint = R.lift(x, a, b, form=by), R(x, a, b)
    flows = R.flows(x, a, b, k=4, by=by, least=0.01)
    assert flows.certified == (True, True)
    for s, found in enumerate(flows):
        usable = torch.where(joint[s].abs() >= 0.01, values[s], torch.zeros_like(values[s])).flatten()
        best = usable.sort(descending=True).values[:4]
        assert [flow.ranked[1] for flow in found if flow.ranked] == pytest.approx(best[best > 0].tolist())
        for flow in found:
            assert float(R(*flow)) == pytest.approx(flow.relevance)
            assert flow.ranked == (by, pytest.approx(float(R.sample(s).lift(*flow, form=by))))
            assert dict(flow.blocks)["1.channels"] in (4, 0, 2)
        assert by in str(flows)
    assert by in flows.to_pandas().columns


def test_among_the_largest_flows_the_bound_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    R = measured()
    x, a, b = R.input.channels, R["1"].channels, R["3"].channels
    whole = {by: R.flows(x, a, b, k=3, by=by) for by in ("lift", "excess")}
    monkeypatch.setattr(LIFT, "table_cost", lambda plan: math.inf)
    for by, exact in whole.items():
        found = R.flows(x, a, b, k=3, by=by)
        assert [[flow.blocks for flow in one] for one in found] == [[flow.blocks for flow in one] for one in exact]
    assert R.flows(x, a, b, k=3, by="lift").certified == (True, True)  # all flows above least were looked at
    monkeypatch.setattr(LIFT, "TRIED", 3)
    few = R.flows(x, a, b, k=1, by="excess")
    for s in range(2):
        best = float(R.sample(s).lift(x, a, b, form="excess").max())
        ranked = few[s][0].ranked
        assert ranked is not None
        assert best <= ranked[1] + few.gap[s] + 1e-12

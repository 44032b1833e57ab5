"""Pairs of far layers by groups of blocks: the list of the whole table, at every sign, for fewer densities."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.measure.measure import Measure
from nrm.search import pairs
from nrm.search.prefixes import Prefixes

LOW, HIGH = 30, 44


@pytest.fixture(autouse=True)
def searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole tables are never cheap enough here, and groups are small enough to be divided several times."""
    monkeypatch.setattr("nrm.search.flows.table_cost", lambda plan: math.inf)
    monkeypatch.setattr(pairs, "OPEN", 1.5)


def network(rules: Any, seed: int = 0, **options: Any) -> Measure:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(2, LOW, 3), nn.ReLU(), nn.Conv2d(LOW, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, HIGH, 1),
        nn.ReLU(), nn.Flatten(), nn.Linear(HIGH * 16, 3),
    ).double().eval()  # fmt: skip
    nn.init.normal_(model[3].weight)  # gains of both signs
    return nrm.measure(model, torch.rand(2, 2, 8, 8, dtype=torch.float64), rules=rules, **options)


def largest(table: Tensor, k: int, sign: str) -> list[tuple[int, ...]]:
    score = {"+": table, "-": -table, "abs": table.abs()}[sign].flatten()
    order = [i for i in score.argsort(descending=True, stable=True).tolist() if score[i] > 0][:k]
    return [(i // table.shape[1], i % table.shape[1]) for i in order]


def places(flows: tuple[nrm.search.Flow, ...]) -> list[tuple[int, ...]]:
    return [tuple(at for _, at in flow.blocks) for flow in flows]


@pytest.mark.parametrize("sign", ["+", "-", "abs"])
@pytest.mark.parametrize("rules", ["epsilon-plus-flat", "lrp-0", "epsilon-alpha2-beta1"])
def test_the_list_is_that_of_the_whole_table(rules: str, sign: str) -> None:
    R = network(rules, target=0)
    a, b = R["1"].channels, R["6"].channels
    table, flows = R(a, b), R.flows(a, b, k=7, sign=sign, effort=1e9)
    assert flows.certified == (True, True)
    for s, found in enumerate(flows):
        assert places(found) == largest(table[s], 7, sign)
        values = torch.tensor([flow.relevance for flow in found], dtype=torch.float64)
        expected = torch.stack([table[s][at] for at in places(found)])
        torch.testing.assert_close(values, expected, rtol=1e-10, atol=1e-13)


def test_blocks_may_be_positions_groups_and_chosen_ones_under_sets() -> None:
    R = network("epsilon-plus-flat", target=1)
    labels = torch.arange(LOW)[:, None, None] % 11 - 1  # the first group is left out
    for low, high, given in (
        (R["1"].groups(labels), R["6"].channels[3:40], None),
        (R["1"].positions, R["6"].channels, R["1"][:, 1:4]),
        (R["1"].channels[[7, 2, 19]], R["6"].positions, R["6"][:20]),
    ):
        asked = (low, high) if given is None else (low, high, given)
        table, flows = R(*asked), R.flows(low, high, k=4, given=given, effort=1e9)
        assert flows.certified == (True, True)
        for s, found in enumerate(flows):
            expected = table[s].flatten().topk(4).values
            values = torch.tensor([flow.relevance for flow in found], dtype=torch.float64)
            torch.testing.assert_close(values, expected, rtol=1e-10, atol=1e-13)


def test_what_stops_early_says_how_much_may_be_missing() -> None:
    R = network("epsilon-plus-flat", target=0)
    a, b = R["1"].channels, R["6"].channels
    table, finished = R(a, b), False
    for effort in (1e-3, 1.0, 4.0, 16.0, 64.0, 1e9):
        flows = R.flows(a, b, k=5, effort=effort)
        for s, found in enumerate(flows):
            known, exact = set(places(found)), table[s].flatten().topk(5).values
            missing = max((float(table[s][at]) for at in largest(table[s], 5, "+") if at not in known), default=0.0)
            assert missing <= found[-1].relevance + flows.gap[s] + 1e-12
            assert not flows.certified[s] or torch.allclose(torch.tensor([f.relevance for f in found]).double(), exact)
        finished = all(flows.certified)
    assert finished


def test_one_strong_pair_is_found_by_few_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    carried: list[int] = []
    of_groups = Prefixes.of_groups

    def counted(self: Prefixes, batch: Any) -> Any:
        carried.append(max(map(len, batch.values()), default=0))
        return of_groups(self, batch)

    monkeypatch.setattr(Prefixes, "of_groups", counted)
    torch.manual_seed(0)
    wide = 256
    model = nn.Sequential(nn.Linear(8, wide), nn.ReLU(), nn.Linear(wide, 20), nn.ReLU(), nn.Linear(20, wide), nn.ReLU(),
                          nn.Linear(wide, 2)).double()  # fmt: skip
    with torch.no_grad():
        for layer in (model[0], model[2], model[4], model[6]):
            layer.weight.uniform_(0.1, 0.2)
            layer.bias.zero_()
        model[2].weight[3, 17], model[4].weight[200, 3] = 400.0, 400.0
    R = nrm.measure(model, torch.rand(1, 8, dtype=torch.float64), rules="epsilon-plus-flat", target=0)
    flows = R.flows(R["1"].channels, R["5"].channels, k=1, effort=1e9)
    assert places(flows[0]) == [(17, 200)]
    assert flows.certified == (True,)
    assert sum(carried) <= wide // 8

"""Law 14: every step carries units to units, and proportional steps need no column sums, no zero test and no sink."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

import nrm
from laws.agreement import ask, everywhere, law_of_each, options
from networks import KINDS, cases
from recurrent import Fused, layer

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")


def carries_units_to_units(R: nrm.Measure) -> None:
    """The maps of every node, applied to the units of what it reads, add up to its own unit."""
    network = R.inner.network
    for node in network.nodes:
        if not node.links:
            continue
        parts = [link.map.apply(network.full_unit(link.to)[None])[0] for link in node.links]
        unit = network.full_unit(node.index)
        size = sum(float(part.abs().max()) if part.numel() else 0.0 for part in parts)
        torch.testing.assert_close(sum(parts[1:], parts[0]).expand_as(unit), unit, rtol=1e-9, atol=1e-10 * max(1, size))


@pytest.mark.parametrize("kind", KINDS)
@law_of_each
@given(data=st.data())
def test_every_step_carries_units_to_units(kind: str, data: st.DataObject) -> None:
    case = data.draw(cases(kind, batch=2))
    rules, chosen = data.draw(everywhere), data.draw(options)
    carries_units_to_units(ask(case, rules, 0, **chosen))


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh", "relu"])
@pytest.mark.parametrize("rules", ["lrp-0", nrm.Gamma(0.5)], ids=str)
def test_recurrent_steps_carry_units_to_units(kind: str, rules: object) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 3, dtype=torch.double)
    carries_units_to_units(nrm.measure(Fused(layer(kind, batch_first=True)), x, rules=rules, target=0))


@pytest.mark.parametrize("rules", ["transformer", "attn-lrp"])
def test_attention_carries_units_to_units(rules: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 3)).double().eval()
    carries_units_to_units(nrm.measure(model, torch.randn(2, 5, 8).double(), rules=rules, target=(0, 1)))


class Cancelling(nn.Module):
    """Hidden neurons whose contributions cancel by ``amount``, and go on as they are."""

    def __init__(self, amount: float) -> None:
        super().__init__()
        self.first, self.last = (nn.Linear(2, 2, bias=False).double() for _ in range(2))
        self.first.weight.data = torch.tensor([[1.0, -1.0 + amount], [1.0, 2.0]]).double()
        self.last.weight.data = torch.tensor([[3.0, 1.0], [1.0, -1.0]]).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


def test_parts_that_cancel_are_the_limit_of_parts_that_do_not() -> None:
    """A neuron of value 0 has relevance 0, and the walks through it have what they have next to it."""
    x = torch.ones(1, 2, dtype=torch.double)
    exact, near = (nrm.measure(Cancelling(amount), x, target=0) for amount in (0.0, 1e-9))
    first = exact["first"]
    assert float(exact.values(first)[0, 0]) == 0
    assert float(exact(first.channel(0))) == 0
    torch.testing.assert_close(exact(exact.input, first), near(near.input, first), rtol=0, atol=1e-8)
    assert float(exact(exact.input, first)[0, :, 0].abs().min()) > 0.5
    assert exact.check().sinks == {}
    (walk,) = exact.walks(k=1)[0]
    assert walk.relevance == pytest.approx(1.0)


def test_units_of_the_output_exist_at_an_output_of_zero() -> None:
    """What the output is the sum of, where it is 0 and nothing can be a share of it."""
    model = nn.Linear(2, 1)
    model.load_state_dict({"weight": torch.tensor([[2.0, -1.0]]), "bias": torch.tensor([-5.0])})
    R = nrm.measure(model, torch.tensor([[3.0, 1.0], [3.0, 0.0]]))
    assert R.value.tolist() == [0.0, 1.0]
    assert R.in_units(R.input).tolist() == [[6.0, -1.0], [6.0, 0.0]]
    assert R.in_units(R.biases[0]).flatten().tolist() == [-5.0, -5.0]
    with pytest.raises(nrm.NrmError, match=r"output is 0(.|\n)*R\.in_units"):
        R(R.input)
    torch.testing.assert_close(R.sample(1)(R.input), torch.tensor([[6.0, 0.0]]))


@pytest.mark.filterwarnings("default::nrm.errors.NrmWarning")
def test_shares_of_an_output_of_zero_are_said_to_be_those_of_the_rule() -> None:
    """z+ shares by entries of its own, whatever the value; what was said is that there are no shares."""
    model = nn.Linear(2, 1)
    model.load_state_dict({"weight": torch.tensor([[2.0, -1.0]]), "bias": torch.tensor([-5.0])})
    R = nrm.measure(model, torch.tensor([[3.0, 1.0]]), rules=nrm.ZPlus())
    assert R(R.input).tolist() == [[1.0, 0.0]]
    assert R.in_units(R.input).tolist() == [[0.0, 0.0]]
    verdict = R.check().verdict
    assert "shares of the rule" in verdict
    assert "nothing can be a share" not in verdict

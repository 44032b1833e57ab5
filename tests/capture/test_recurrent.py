"""Recurrent modules on the tape: what is recorded, under which names, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import nrm
from nrm.capture import Multiply, capture
from nrm.errors import CaptureError, QuestionError
from recurrent import KINDS, Fused, Loop, layer, states

pytestmark = pytest.mark.filterwarnings("ignore::nrm.NrmWarning")


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_has_a_tensor_of_its_own(kind: str) -> None:
    rnn = layer(kind, batch_first=True)
    x = numbers(2, 6, 3)
    tape = capture(Fused(rnn), x)
    out = rnn(x)[0]
    for t in range(6):
        torch.testing.assert_close(tape.find(f"rnn/h#{t}").value, out[:, t])
        assert tape.find(f"rnn.step#{t}") is tape.find(f"rnn/h#{t}")
    assert tape.find("rnn.step#-1") is tape.find("rnn/h#5")
    torch.testing.assert_close(tape.find("rnn").value, out)
    assert (tape.nodes[tape.inputs[0]].channel, tape.nodes[tape.inputs[0]].sample) == (2, 0)


def test_states_of_layers_and_directions() -> None:
    """Steps count time as the input does: the backward state at step 0 has read everything."""
    rnn = layer("lstm", num_layers=2, bidirectional=True, batch_first=True)
    x = numbers(2, 4, 3)
    tape = capture(Fused(rnn), x)
    out, (h, c) = rnn(x)
    for k, last in (("forward", 3), ("backward", 0)):
        side = slice(0, 4) if k == "forward" else slice(4, 8)
        for t in range(4):
            torch.testing.assert_close(tape.find(f"rnn[layer 1, {k}]/h#{t}").value, out[:, t, side])
        row = 2 + (k == "backward")
        torch.testing.assert_close(tape.find(f"rnn[layer 1, {k}]/h#{last}").value, h[row])
        torch.testing.assert_close(tape.find(f"rnn[layer 1, {k}]/c#{last}").value, c[row])
    torch.testing.assert_close(tape.find("rnn[1]").value, h)
    torch.testing.assert_close(tape.find("rnn[2]").value, c)
    assert sorted(tape.steps) == [f"rnn[layer {k}, {d}]" for k in (0, 1) for d in ("backward", "forward")]


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gates_are_told_from_signals(kind: str) -> None:
    """LRP-all: of every product the sigmoid gets nothing."""
    rnn = layer(kind, batch_first=True)
    R = nrm.measure(Fused(rnn), (numbers(1, 4, 3), *states(kind, rnn, 1)))
    products = [n for n in R.inner.tape.nodes if isinstance(n.op, Multiply)]
    assert len(products) == 4 * 3
    for node in products:
        rules, nodes = R.inner.network.rules, R.inner.tape.nodes
        shares = {nodes[j].name.split("/")[-1].split("#")[0]: rules.coefficient(node.index, p)
                  for p, j in enumerate(node.inputs)}  # fmt: skip
        gates = {name: share for name, share in shares.items() if name in ("i", "f", "o", "r", "z", "rsub")}
        assert list(gates.values()) == [0.0]
        assert sum(shares.values()) == 1.0
    for gate in ("i", "f", "o", "r", "z"):
        if f"rnn/{gate}" in R.inner.tape.names:
            assert not R(R[f"rnn/{gate}#2"]).any()


def test_a_cell_has_its_bias() -> None:
    """``b_ih + b_hh`` are one bias neuron per call."""
    R = nrm.measure(Loop("lstm", Fused(layer("lstm", batch_first=True))), numbers(2, 4, 3), bias="input")
    for t in range(4):
        assert R(R[f"cell.bias#{t}"]).shape == (2, 16)
        torch.testing.assert_close(R(R[f"cell.bias#{t}"]), R(R[f"cell/gates.bias#{t}"]))
    assert len([b for b in R.biases if b.name.startswith("cell")]) == 4
    R = nrm.measure(Loop("gru", Fused(layer("gru", batch_first=True))), numbers(2, 4, 3), bias="input")
    with pytest.raises(QuestionError, match="no bias of its own"):
        R["cell.bias#1"]


def test_learned_initial_states_are_inputs_in_the_middle() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h0, self.rnn = nn.Parameter(numbers(4)), layer("gru", batch_first=True)
            self.head = nn.Linear(4, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x, self.h0.expand(1, len(x), 4))[0][:, -1])

    R = nrm.measure(Model(), numbers(2, 3, 3), bias="input")
    assert "rnn/h00" not in R.inner.tape.names
    assert [p.name for p in R.inputs][:2] == ["input", "rnn/h0"]
    assert R(R["rnn/h0"]).shape == (2, 4)
    assert bool(R(R["rnn/h0"]).any())
    torch.testing.assert_close(sum(R(p.all) for p in R.inputs), torch.ones(2, dtype=torch.float64))


def test_a_module_called_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = layer("tanh", 3, 3, batch_first=True), nn.Linear(3, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(self.rnn(x)[0])[0][:, -1])

    R = nrm.measure(Twice(), numbers(1, 3, 3))
    assert R.inner.tape.find("rnn#1.step#2") is R.inner.tape.find("rnn/h#5")
    assert R(nrm.layer("rnn#0").steps, nrm.layer("rnn#1").steps).shape == (1, 3, 3)
    close = R(nrm.layer("rnn#0").step(1), nrm.layer("rnn#1").step(2))
    torch.testing.assert_close(R(nrm.layer("rnn#0").steps, nrm.layer("rnn#1").steps)[:, 1, 2], close)
    with pytest.raises(QuestionError, match="called 2 times"):
        R(nrm.layer("rnn").step(0))


def test_complaints() -> None:
    R = nrm.measure(Fused(layer("lstm", bidirectional=True, batch_first=True)), numbers(1, 3, 3))
    S = nrm.measure(Fused(layer("lstm", batch_first=True)), numbers(1, 3, 3))
    for ask, words in (
        (lambda: R(R["rnn"].step(0)), "rnn[backward]"),
        (lambda: R(R["rnn[forward]"].step(3)), "0 to 2"),
        (lambda: R(R["rnn[forward]"].step([0, 7])), "no such step"),
        (lambda: R(R["head"].step(0)), "has no steps"),
        (lambda: R(R["head"].steps), "has no steps"),
        (lambda: R(nrm.layer("nothing").step(0)), "unknown layer"),
        (lambda: R(nrm.layer("rnn[forward]").step([[0], [1]])), "1 lists"),
        (lambda: R(R["rnn[forward]"].step(list(range(3)) * 1), R["rnn[forward]"]), "rnn[forward]"),
        (lambda: S.flows(S["rnn"].steps), "steps are not blocks"),
    ):
        with pytest.raises(QuestionError) as caught:
            ask()
        assert words in str(caught.value)


def test_active_dropout_is_refused() -> None:
    model = Fused(nn.LSTM(3, 4, 2, dropout=0.5, batch_first=True).double())
    capture(model, numbers(1, 3, 3))
    model.rnn.train()
    with pytest.raises(CaptureError, match="dropout"):
        capture(model, numbers(1, 3, 3))


def test_half_precision_and_the_model_is_left_alone() -> None:
    model = Fused(nn.LSTM(3, 4, bidirectional=True, batch_first=True)).bfloat16()
    before = copy.deepcopy(model.state_dict())
    tape = capture(model, torch.randn(1, 5, 3, dtype=torch.bfloat16))
    assert {node.value.dtype for node in tape.nodes} == {torch.float32}
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    x = torch.randn(1, 5, 3)
    exact = capture(Fused(nn.GRU(3, 4, batch_first=True)).float(), x, dtype=torch.float64)
    assert {node.value.dtype for node in exact.nodes} == {torch.float64}


class FromPacked(nn.Module):
    """A model that takes a packed sequence and returns a class."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = layer("lstm", bidirectional=True), nn.Linear(8, 2).double()

    def forward(self, packed: PackedSequence) -> Tensor:
        out, lengths = pad_packed_sequence(self.rnn(packed)[0])
        return self.head(out.sum(0) / lengths[:, None])


@pytest.mark.parametrize("lengths", [[5, 3, 2], [2, 5, 3], [4, 4, 4], [3]])
def test_packed_sequences_as_inputs(lengths: list[int]) -> None:
    model, found = FromPacked(), [numbers(n, 3) for n in lengths]
    packed = pack_sequence(found, enforce_sorted=False)
    R = nrm.measure(model, packed, target=0, bias="input")
    assert len(R) == len(lengths)
    heat = R(R.input)
    assert heat.shape == (len(lengths), sum(lengths), 3)
    torch.testing.assert_close(R.value, model(packed)[:, 0])
    for i, x in enumerate(found):
        alone = pack_sequence([x])
        S = nrm.measure(model, alone, target=0, bias="input")
        mine = pad_packed_sequence(packed._replace(data=heat[i]), batch_first=True)[0]
        torch.testing.assert_close(mine[i, : len(x)], S(S.input)[0])
        torch.testing.assert_close(heat[i].sum(), mine[i, : len(x)].sum())
    torch.testing.assert_close(sum(R(p.all) for p in R.inputs), torch.ones(len(R), dtype=torch.float64))


def test_packing_is_movement() -> None:
    x, lengths = numbers(3, 4, 2), torch.tensor([2, 4, 1])

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(packed, batch_first=True, padding_value=7.0, total_length=5)[0].flatten(1)

    R = nrm.measure(Model(), x, target=0)
    kept = torch.zeros_like(x)
    kept[:, 0, 0] = 1.0
    torch.testing.assert_close(R(R.input), kept)

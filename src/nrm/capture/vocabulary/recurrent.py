"""Recurrent layers: the fused calls of torch unfolded, step by step, into the algebra of their cells.

``nn.RNN``, ``nn.LSTM``, ``nn.GRU`` and their cells end in one call each. Its unfolding has a tensor of its own for
every step, so that a walk can be asked for the steps it passes: ``"lstm/h#80"`` is the hidden state after step 80. With
several layers or both directions the layer says which: ``"lstm[layer 1, backward]/h#80"``. Steps count time as the
input does, in both directions. An initial state that is 0 has no neurons, like the border of a padded convolution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nrm.capture.call import Call
from nrm.capture.ops import Combine, Linear, Multiply, Op, Pointwise, Source, Term
from nrm.capture.recall import At, Recall
from nrm.capture.vocabulary.reading import Steps, reads
from nrm.errors import CaptureError
from nrm.operators import Dense, Gather, LinearMap, Slice

SQUASH: dict[str, tuple[Callable[[Tensor], Tensor], Pointwise]] = {
    "sigmoid": (torch.sigmoid, Pointwise(0.5, function=torch.sigmoid)),
    "tanh": (torch.tanh, Pointwise(function=torch.tanh)),
    "relu": (torch.relu, Pointwise(function=torch.relu)),
}


class RecurrentWeights(NamedTuple):
    """The weights of one layer in one direction, gates stacked as torch stacks them."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None
    projection: Tensor | None = None

    @property
    def bias(self) -> Tensor | None:
        """Both biases as the one that they are in a sum."""
        if self.input_bias is None or self.hidden_bias is None:
            return None
        return self.input_bias + self.hidden_bias


class RecurrentState(NamedTuple):
    """The nodes of a state; None is 0. ``rows`` are the samples that have a state at all, None for every one."""

    hidden: int | None = None
    cell: int | None = None
    rows: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Cell:
    """One cell as it is written onto the tape: a method per primitive step, and one per kind of cell.

    ``names`` collects the nodes of one name; a node is also known by the name of its function, as every other op.
    """

    call: Call
    kind: str
    weights: RecurrentWeights
    tag: str
    names: dict[str, list[int]]

    # ---- primitive steps -------------------------------------------------------------------------------------

    def _value(self, i: int) -> Tensor:
        return self.call.recorder.nodes[i].value

    def _add(self, op: Op, inputs: list[int], value: Tensor, function: str, name: str = "") -> int:
        recorder = self.call.recorder
        index = recorder.add(op, inputs, value, function)
        own = f"{self.tag}/{function}"
        recorder.nodes[index].name = f"{self.tag}/{name}" if name else own
        for known in dict.fromkeys((own, recorder.nodes[index].name)):
            self.names.setdefault(known, []).append(index)
        return index

    def _linear(self, x: int, weight: Tensor, bias: Tensor | None, value: Tensor | None = None, name: str = "") -> int:
        before = self._value(x)
        value = torch.nn.functional.linear(before, weight, bias) if value is None else value
        return self._add(Linear(Dense(before.shape, weight), "linear", bias), [x], value, "linear", name)

    def _squash(self, x: int, function: str, name: str = "") -> int:
        compute, op = SQUASH[function]
        return self._add(op, [x], compute(self._value(x)), function, name)

    def _multiply(self, a: int, b: int, name: str = "") -> int:
        return self._add(Multiply((None, None)), [a, b], self._value(a) * self._value(b), "mul", name)

    def _sum(self, terms: list[tuple[int, LinearMap | None]], name: str, shift: Tensor | None = None) -> int:
        if len(terms) == 1 and terms[0][1] is None and shift is None:
            self.names.setdefault(f"{self.tag}/{name}", []).append(terms[0][0])
            self.call.recorder.nodes[terms[0][0]].name = f"{self.tag}/{name}"
            return terms[0][0]
        parts = [self._value(i) if move is None else move.apply(self._value(i)[None])[0] for i, move in terms]
        value = sum(parts[1:], parts[0]) if shift is None else sum(parts[1:], parts[0]) + shift
        op = Combine(tuple(Term(move) for _, move in terms), shift, joins=True, kind="add")
        return self._add(op, [i for i, _ in terms], value, "add", name)

    def _slice(self, x: int, begin: int, end: int) -> int:
        before = self._value(x)
        value = before[..., begin:end]
        move = Slice(before.shape, value.shape, (Ellipsis, slice(begin, end)))
        return self._add(Combine((Term(move),)), [x], value, "split")

    def _rows(self, x: int, rows: Tensor) -> int:
        """The samples of a state that have one."""
        before = self._value(x)
        value = before[rows]
        index = torch.arange(before.numel(), device=before.device).view(before.shape)[rows]
        return self._add(Combine((Term(Gather(before.shape, value.shape, index.flatten())),)), [x], value, "rows")

    @staticmethod
    def _back(small: Tensor, rows: Tensor | None, batch: int) -> LinearMap | None:
        """The movement of some samples' part into the whole batch; nothing comes from nowhere."""
        if rows is None:
            return None
        index = torch.full((batch, small.shape[1]), -1, dtype=torch.long, device=small.device)
        index[rows] = torch.arange(small.numel(), device=small.device).view(small.shape)
        return Gather(small.shape, torch.Size(index.shape), index.flatten())

    # ---- cells -----------------------------------------------------------------------------------------------

    def step(self, x: int, before: RecurrentState, read: Tensor | None = None) -> RecurrentState:
        """One step: the state after reading ``x``. ``read`` is ``W x + b`` if it is known already."""
        if self.kind == "lstm":
            return self._lstm(x, before, read)
        hidden = self._gru(x, before, read) if self.kind == "gru" else self._rnn(x, before, read)
        return RecurrentState(hidden)

    def _gates(self, x: int, before: RecurrentState, read: Tensor | None, name: str) -> int:
        """``W x + U h + b``, one column; the two biases are one."""
        batch = self._value(x).shape[0]
        if before.hidden is None:
            return self._linear(x, self.weights.input, self.weights.bias, read, name)
        own = self._linear(x, self.weights.input, self.weights.bias, read)
        recurrent = self._linear(self._present(before.hidden, before.rows), self.weights.hidden, None)
        return self._sum([(own, None), (recurrent, self._back(self._value(recurrent), before.rows, batch))], name)

    def _present(self, state: int, rows: Tensor | None) -> int:
        return state if rows is None else self._rows(state, rows)

    def _rnn(self, x: int, before: RecurrentState, read: Tensor | None) -> int:
        return self._squash(self._gates(x, before, read, "pre"), self.kind.removeprefix("rnn_"), "h")

    def _lstm(self, x: int, before: RecurrentState, read: Tensor | None) -> RecurrentState:
        batch = self._value(x).shape[0]
        gates = self._gates(x, before, read, "gates")
        size = self.weights.input.shape[0] // 4
        parts = [self._slice(gates, k * size, (k + 1) * size) for k in range(4)]
        i, f, g, o = (
            self._squash(part, "tanh" if name == "g" else "sigmoid", name)
            for part, name in zip(parts, "ifgo", strict=True)
        )
        new = [(self._multiply(i, g), None)]
        if before.cell is not None:
            kept = self._multiply(self._present(f, before.rows), self._present(before.cell, before.rows))
            cell = self._sum([(kept, self._back(self._value(kept), before.rows, batch)), *new], "c")
        else:
            cell = self._sum([*new], "c")
        bounded = self._squash(cell, "tanh")
        if self.weights.projection is None:
            return RecurrentState(self._multiply(o, bounded, "h"), cell)
        return RecurrentState(self._linear(self._multiply(o, bounded), self.weights.projection, None, name="h"), cell)

    def _gru(self, x: int, before: RecurrentState, read: Tensor | None) -> int:
        """``n = tanh(W x + b + r (U h + d))``, ``h = (1 - z) n + z h``; of a state that is 0 only ``r d`` is left."""
        w, batch, size = self.weights, self._value(x).shape[0], self.weights.input.shape[0] // 3
        both, own = slice(None, 2 * size), slice(2 * size, None)
        inside = None if w.hidden_bias is None else w.hidden_bias[own]
        pair = RecurrentWeights(w.input[both], w.hidden[both], *(None if b is None else b[both] for b in w[2:4]))
        ready = None if read is None else read[..., both]
        ready = ready if ready is None or pair.hidden_bias is None else ready + pair.hidden_bias
        gates = replace(self, weights=pair)._gates(x, before, ready, "gates")
        r, z = (
            self._squash(self._slice(gates, k * size, (k + 1) * size), "sigmoid", name) for k, name in enumerate("rz")
        )
        bias = None if w.input_bias is None else w.input_bias[own]
        terms: list[tuple[int, LinearMap | None]] = []
        shift = None if inside is None else self._value(r) * inside
        if before.hidden is not None:
            memory = self._memory(before.hidden, before.rows, w.hidden[own], inside, batch)
            kept = self._multiply(self._present(r, before.rows), self._present(memory, before.rows))
            terms.append((kept, self._back(self._value(kept), before.rows, batch)))
            if shift is not None:
                shift = None if before.rows is None else shift.index_fill(0, before.rows, 0.0)
        first = self._linear(x, w.input[own], bias, None if read is None else read[..., own])
        before_tanh = self._sum([(first, None), *terms], "pre", shift)
        if shift is not None and inside is not None:
            self._hold(before_tanh, r, inside, before.rows)
        n = self._squash(before_tanh, "tanh", "n")
        rest = self._add(
            Combine((Term(None, -1.0),), 1.0, joins=True, kind="add"), [z], 1.0 - self._value(z), "rsub"
        )  # fmt: skip
        new = [(self._multiply(rest, n), None)]
        if before.hidden is None:
            return self._sum([*new], "h")
        old = self._multiply(self._present(z, before.rows), self._present(before.hidden, before.rows))
        return self._sum([*new, (old, self._back(self._value(old), before.rows, batch))], "h")

    def _hold(self, total: int, gate: int, bias: Tensor, rows: Tensor | None) -> None:
        """A sum whose shift is a bias behind a gate: the gate is held constant for relevance only."""
        node = self.call.recorder.nodes[total]
        assert isinstance(node.op, Combine)
        moves = [term.move for term in node.op.terms]

        def again(open: Tensor, *parts: Tensor) -> Tensor:
            shift = open * bias if rows is None else (open * bias).index_fill(0, rows, 0.0)
            moved = (x if move is None else move.apply(x[None])[0] for x, move in zip(parts, moves, strict=True))
            return sum(moved, shift)

        scale = bias if rows is None else bias.expand(node.shape).index_fill(0, rows, 0.0)
        node.op = replace(node.op, gated=((gate, Term(None, scale)),))
        node.recall = Recall(again, (At(gate), *map(At, node.inputs)), {}, lambda result: result)

    def _memory(self, h: int, rows: Tensor | None, weight: Tensor, bias: Tensor | None, batch: int) -> int:
        """``U h + d``, for the whole batch; only samples with a state are read from it."""
        if rows is None:
            return self._linear(h, weight, bias, name="memory")
        some = self._linear(self._rows(h, rows), weight, None)
        nodes, back = self.call.recorder.nodes, self._back(self._value(some), rows, batch)
        whole = nodes[self._sum([(some, back)], "memory", bias)]
        whole.sample, whole.owner = nodes[h].sample, nodes[h].owner  # samples without a state have their rows, too
        return whole.index


# ---- single cells ----------------------------------------------------------------------------------------------------


@reads("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def _one_step(c: Call, input: Tensor, hx: Any, *weights: Tensor | None) -> Steps:
    if any(c.tracked(w) for w in weights):
        return None
    path, names = c.recorder.path, dict[str, list[int]]()
    states = hx if isinstance(hx, list | tuple) else (hx,)
    x = c.index(input)
    given = [
        c.recorder.node(state).index if c.tracked(state) else start(c, state, f"{path}/{name}0", x)
        for state, name in zip(states, "hc", strict=False)
    ]
    cell = Cell(c, c.name.removesuffix("_cell"), RecurrentWeights(*weights), path, names)  # type: ignore[arg-type]
    after = cell.step(x, RecurrentState(given[0], given[1] if len(given) > 1 else None))
    for name, calls in names.items():
        c.recorder.names.setdefault(name, []).extend(calls)
    results = c.result if isinstance(c.result, tuple) else (c.result,)
    for result, node in zip(results, (after.hidden, after.cell), strict=False):
        assert node is not None
        check_equal(c, result, c.recorder.nodes[node].value)
        c.recorder.follow(result, node)
    assert after.hidden is not None
    if path:
        c.recorder.nodes[after.hidden].name = ""  # the module gives its own name to what it returns
    return []


def start(c: Call, state: Tensor, name: str, like: int) -> int | None:
    """A constant initial state: an input in the middle, or nothing if it is 0."""
    if not bool(state.any()):
        return None
    origin, sample = c.recorder.origin.get(id(state)), c.recorder.nodes[like].sample
    return c.recorder.source(Source("constant"), state, "state", sample, 1, origin[1] if origin else name)


def check_equal(c: Call, theirs: Tensor, ours: Tensor) -> None:
    """The unfolding is our own arithmetic: it has to compute what torch computed."""
    difference = float((theirs - ours).abs().amax())
    if not difference <= 1e5 * torch.finfo(ours.dtype).eps * max(1.0, float(theirs.abs().amax())):
        raise CaptureError(
            f"the unfolding of {c.name} does not compute what torch computed", where=c.recorder.place(),
            got=f"a difference of {difference:.2g}", expected="the same up to rounding",
            hint="try dtype=torch.float64",
        )  # fmt: skip

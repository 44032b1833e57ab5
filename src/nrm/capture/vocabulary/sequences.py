"""Recurrent layers on whole sequences: layers, directions and steps unfolded, for padded and packed batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nrm.capture.call import Call
from nrm.capture.ops import Combine, Op, Source, Term
from nrm.capture.vocabulary.reading import Steps, reads
from nrm.capture.vocabulary.recurrent import Cell, RecurrentState, RecurrentWeights, check_equal, start
from nrm.errors import CaptureError
from nrm.operators import Gather, Place, Slice


@reads("lstm", "gru", "rnn_tanh", "rnn_relu")
def _sequence(c: Call, input: Tensor, *args: Any) -> Steps:
    packed = isinstance(args[0], Tensor) and not args[0].is_floating_point()
    sizes, args = (args[0], args[1:]) if packed else (None, args)
    hx, params, has_bias, layers, dropout, training, bidirectional, *rest = args
    if any(c.tracked(w) for w in params):
        return None
    if training and dropout and layers > 1:
        raise CaptureError(
            f"the dropout of {c.name} is active, so that the model has no fixed prediction", where=c.recorder.place(),
            got=f"dropout={dropout}, training=True", expected="eval mode", hint="model.eval()",
        )  # fmt: skip
    states = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
    batch = Padded.of(c, input, bool(rest[0])) if sizes is None else Packed.of(c, input, sizes)
    each = len(params) // (layers * (2 if bidirectional else 1))
    weights = [_weights(params[k : k + each], has_bias) for k in range(0, len(params), each)]
    return Unfolding(c, batch, states, weights, layers, 2 if bidirectional else 1).steps()


def _weights(params: Sequence[Tensor], has_bias: bool) -> RecurrentWeights:
    own = [p.detach() for p in params]
    last = own[4 if has_bias else 2 :]
    biases = own[2:4] if has_bias else [None, None]
    return RecurrentWeights(own[0], own[1], biases[0], biases[1], last[0] if last else None)


@dataclass(frozen=True, eq=False)
class Padded:
    """A batch of sequences of one length: a slice of the input for every step."""

    call: Call
    node: int
    steps: int
    samples: int
    batch_first: bool

    @classmethod
    def of(cls, c: Call, input: Tensor, batch_first: bool) -> Padded:
        """The batch as the call has it."""
        steps, samples = (input.shape[1], input.shape[0]) if batch_first else input.shape[:2]
        return cls(c, c.index(input), steps, samples, batch_first)

    def at(self, t: int) -> tuple[Any, ...]:
        """The index of a step in the tensors of the call."""
        return (slice(None), t) if self.batch_first else (t,)

    def read(self) -> list[int]:
        """The input of every step, ``(samples, features)``."""
        return _slices(self.call, self.node, [self.at(t) for t in range(self.steps)])

    def row(self, state: Tensor) -> Tensor:
        """A constant state in the order of the samples."""
        return state

    def start(self, state: Tensor, k: int) -> int:
        """The part of a state that one layer starts from."""
        return _slices(self.call, self.call.recorder.node(state).index, [(k,)])[0]

    def before(self, t: int, forward: bool) -> Tensor | None:
        """The samples that have a step before this one, None for all."""
        return None

    def last(self, nodes: Sequence[int], forward: bool) -> int:
        """The state after the last step."""
        return nodes[-1 if forward else 0]

    def whole(self, result: Tensor, parts: Sequence[Sequence[int]]) -> tuple[Tensor, Op, list[int]]:
        """The output of the call: the hidden states of all steps, directions side by side."""
        terms, inputs = [], []
        for d, nodes in enumerate(parts):
            for t, i in enumerate(nodes):
                shape = self.call.recorder.nodes[i].shape
                index = (*self.at(t), Ellipsis, slice(d * shape[1], (d + 1) * shape[1]))
                terms.append(Term(Place(shape, result.shape, index)))
                inputs.append(i)
        return result, Combine(tuple(terms)), inputs

    def state(self, result: Tensor, nodes: Sequence[int]) -> tuple[Tensor, Op, list[int]]:
        """The last states of all layers and directions."""
        terms = [Term(Place(self.call.recorder.nodes[i].shape, result.shape, (k,))) for k, i in enumerate(nodes)]
        return result, Combine(tuple(terms)), list(nodes)


@dataclass(frozen=True, eq=False)
class Packed(Padded):
    """Sequences of several lengths. Rows of the steps are in the order of the samples; ``rank`` is the packed order.

    Steps that a sample does not have are computed along with the others, and nothing reads them.
    """

    lengths: Tensor
    rank: Tensor
    places: Tensor

    @classmethod
    def of(cls, c: Call, input: Tensor, sizes: Tensor) -> Packed:  # type: ignore[override]
        """The sequences, longest first, as batch sizes tell them."""
        node, samples = c.recorder.nodes[c.index(input)], int(sizes[0])
        order = torch.arange(samples)
        if node.owner is not None:
            owners = node.owner.reshape(len(input), -1)[:samples, 0].cpu()
            order = owners if torch.equal(owners.sort().values, order) else order
        places = torch.full((len(sizes), samples), -1)
        begin = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        for t, size in enumerate(sizes.tolist()):
            places[t, order[:size]] = torch.arange(size) + begin[t]
        rank = order.argsort()
        return cls(c, node.index, len(sizes), samples, False, (places >= 0).sum(0), rank, places)

    def read(self) -> list[int]:
        value = self.call.recorder.nodes[self.node].value
        inside, width = value.shape, value.shape[1]
        outside = torch.Size((self.steps, self.samples, width))
        places = self.places.to(value.device)
        index = (places[..., None] * width + torch.arange(width, device=value.device)).masked_fill(
            places[..., None] < 0, -1
        )
        move = Gather(inside, outside, index.flatten())
        padded = self.call.recorder.add(Combine((Term(move),)), [self.node], move.apply(value[None])[0], "unpack")
        nodes = self.call.recorder.nodes
        if nodes[self.node].owner is not None and self.samples == self.call.recorder.samples:
            nodes[padded].sample, nodes[padded].owner = 1, None  # rows are samples, also where there is only one
        return _slices(self.call, padded, [(t,) for t in range(self.steps)])

    def row(self, state: Tensor) -> Tensor:
        return state[self.rank.to(state.device)]

    def start(self, state: Tensor, k: int) -> int:
        node = self.call.recorder.nodes[self.call.recorder.node(state).index]
        places = torch.arange(node.value.numel(), device=node.value.device).view(node.shape)
        chosen = places[k, self.rank.to(places.device)]
        move = Gather(node.shape, chosen.shape, chosen.flatten())
        return self.call.recorder.add(
            Combine((Term(move),)), [node.index], node.value.flatten()[chosen], "state"
        )  # fmt: skip

    def before(self, t: int, forward: bool) -> Tensor | None:
        if forward or t + 1 == self.steps:
            return None
        rows = (self.lengths > t + 1).nonzero()[:, 0]
        return None if len(rows) == self.samples else rows.to(self.call.recorder.nodes[self.node].value.device)

    def last(self, nodes: Sequence[int], forward: bool) -> int:
        if not forward:
            return nodes[0]
        ends = [nodes[n - 1] for n in self.lengths.tolist()]
        return ends[0] if len(set(ends)) == 1 else _choose_rows(self.call, ends)

    def whole(self, result: Tensor, parts: Sequence[Sequence[int]]) -> tuple[Tensor, Op, list[int]]:
        nodes = self.call.recorder.nodes
        values = torch.cat([torch.stack([nodes[i].value for i in part]) for part in parts], 2)
        _, op, inputs = super().whole(values, parts)
        padded = self.call.recorder.add(op, inputs, values, "pack")
        taken = torch.empty(len(result), dtype=torch.long, device=values.device)
        filled = (self.places >= 0).to(values.device)
        taken[self.places.to(values.device)[filled]] = filled.flatten().nonzero()[:, 0]
        width = result.shape[1]
        index = taken[:, None] * width + torch.arange(width, device=values.device)
        return result, Combine((Term(Gather(values.shape, result.shape, index.flatten())),)), [padded]

    def state(self, result: Tensor, nodes: Sequence[int]) -> tuple[Tensor, Op, list[int]]:
        terms, cells = [], self.call.recorder.nodes
        for k, i in enumerate(nodes):
            index = torch.full(result.shape, -1, device=result.device)
            places = torch.arange(cells[i].value.numel(), device=result.device).view(cells[i].shape)
            index[k, self.rank.to(result.device)] = places
            terms.append(Term(Gather(cells[i].shape, result.shape, index.flatten())))
        return result, Combine(tuple(terms)), list(nodes)


def _slices(c: Call, node: int, at: Sequence[tuple[Any, ...]]) -> list[int]:
    value, found = c.recorder.nodes[node].value, []
    for index in at:
        piece = value[index]
        found.append(c.recorder.add(Combine((Term(Slice(value.shape, piece.shape, index)),)), [node], piece, "step"))
    return found


def _choose_rows(c: Call, nodes: Sequence[int]) -> int:
    """Every sample's row of its own node."""
    cells, found = c.recorder.nodes, list(dict.fromkeys(nodes))
    value = torch.stack([cells[i].value[row] for row, i in enumerate(nodes)])
    places = torch.arange(value.numel(), device=value.device).view(value.shape)
    terms = []
    for i in found:
        mine = torch.tensor([j == i for j in nodes], device=value.device)[:, None]
        terms.append(Term(Gather(value.shape, value.shape, places.masked_fill(~mine, -1).flatten())))
    return c.recorder.add(Combine(tuple(terms)), found, value, "last")


@dataclass(frozen=True, eq=False)
class Unfolding:
    """A call on whole sequences: layer by layer, direction by direction, step by step."""

    call: Call
    batch: Padded
    states: tuple[Tensor, ...]
    weights: list[RecurrentWeights]
    layers: int
    directions: int

    def steps(self) -> Steps:
        """Records everything inside; the results of the call are left to the recorder."""
        inputs, ends = self.batch.read(), list[RecurrentState]()
        parts: list[list[int]] = []
        for layer in range(self.layers):
            parts = []
            for direction in range(self.directions):
                states = self._direction(layer, direction, inputs)
                parts.append([s.hidden for s in states if s.hidden is not None])
                forward = direction == 0
                cells = [s.cell for s in states if s.cell is not None]
                ends.append(RecurrentState(self.batch.last(parts[-1], forward),
                                  self.batch.last(cells, forward) if cells else None))  # fmt: skip
            inputs = (
                parts[0] if self.directions == 1 else [self._side_by_side(pair) for pair in zip(*parts, strict=True)]
            )
        if self.directions == 1:
            self.call.recorder.steps.setdefault(self.call.recorder.path, []).append(parts[0])
        return list(self._results(parts, ends))

    def _tag(self, layer: int, direction: int) -> str:
        words = [f"layer {layer}"] if self.layers > 1 else []
        words += [("forward", "backward")[direction]] if self.directions > 1 else []
        return self.call.recorder.path + (f"[{', '.join(words)}]" if words else "")

    def _direction(self, layer: int, direction: int, inputs: Sequence[int]) -> list[RecurrentState]:
        c, k, tag = self.call, layer * self.directions + direction, self._tag(layer, direction)
        weights, nodes = self.weights[k], c.recorder.nodes
        whole = torch.stack([nodes[i].value for i in inputs])
        bias = weights.input_bias if c.name == "gru" else weights.bias
        read = torch.nn.functional.linear(whole, weights.input, bias)
        given = [
            self.batch.start(s, k) if c.tracked(s) else start(c, self.batch.row(s[k]), f"{tag}/{name}0", inputs[0])
            for s, name in zip(self.states, "hc", strict=False)
        ]
        begin = RecurrentState(given[0], given[1] if len(given) > 1 else None)
        steps, names = len(inputs), list[dict[str, list[int]]]()
        found, state = list[RecurrentState](), begin
        for t in range(steps) if direction == 0 else reversed(range(steps)):
            names.append({})
            cell = Cell(c, c.name, weights, tag, names[-1])
            state = cell.step(inputs[t], self._before(state, begin, t, direction == 0), read[t])
            found.append(state)
        for each in names if direction == 0 else reversed(names):
            for name, calls in each.items():
                c.recorder.names.setdefault(name, []).extend(calls)
        found = found if direction == 0 else found[::-1]
        if tag != c.recorder.path:
            c.recorder.steps.setdefault(tag, []).append([s.hidden for s in found if s.hidden is not None])
        return found

    def _before(self, state: RecurrentState, begin: RecurrentState, t: int, forward: bool) -> RecurrentState:
        """The state that a step starts from: samples without a step before it start from the initial one."""
        rows = self.batch.before(t, forward)
        if rows is None:
            return state
        if begin.hidden is None and begin.cell is None:
            return RecurrentState(state.hidden, state.cell, rows) if len(rows) else RecurrentState()
        return RecurrentState(
            self._started(state.hidden, begin.hidden, rows), self._started(state.cell, begin.cell, rows)
        )

    def _started(self, state: int | None, begin: int | None, rows: Tensor) -> int | None:
        if state is None:
            return None
        if begin is None:
            like = self.call.recorder.nodes[state]
            zero, name = torch.zeros_like(like.value), f"{like.module}/state.constant"
            begin = self.call.recorder.source(Source("constant"), zero, "state", like.sample, 1, name)
        has = set(rows.tolist())
        return _choose_rows(self.call, [state if row in has else begin for row in range(self.batch.samples)])

    def _side_by_side(self, pair: Sequence[int]) -> int:
        recorder = self.call.recorder
        value = torch.cat([recorder.nodes[i].value for i in pair], 1)
        half = value.shape[1] // 2
        terms = (Term(Place(recorder.nodes[i].shape, value.shape, (slice(None), slice(d * half, (d + 1) * half))))
                 for d, i in enumerate(pair))  # fmt: skip
        return recorder.add(Combine(tuple(terms)), list(pair), value, "cat")

    def _results(self, parts: list[list[int]], ends: list[RecurrentState]) -> Iterator[tuple[Tensor, Op, list[int]]]:
        output, *states = self.call.result
        yield self._checked(self.batch.whole(output, parts))
        for result, nodes in zip(states, ([s.hidden for s in ends], [s.cell for s in ends]), strict=False):
            yield self._checked(self.batch.state(result, [i for i in nodes if i is not None]))

    def _checked(self, step: tuple[Tensor, Op, list[int]]) -> tuple[Tensor, Op, list[int]]:
        result, op, inputs = step
        assert isinstance(op, Combine)
        ours = torch.zeros_like(result)
        for term, i in zip(op.terms, inputs, strict=True):
            value = self.call.recorder.nodes[i].value
            if isinstance(term.move, Place):
                ours[term.move.index] = value
            else:
                assert term.move is not None
                ours += term.move.apply(value[None])[0]
        check_equal(self.call, result, ours)
        return step


# ---- packing ---------------------------------------------------------------------------------------------------------


@reads("pack_padded_sequence")
def _pack(c: Call, input: Tensor, lengths: Tensor, batch_first: bool) -> Steps:
    places = torch.arange(input.numel(), dtype=torch.float64, device=input.device).view(input.shape)
    index = c.func(places, lengths, batch_first)[0].long()
    data = c.result[0]
    return [(data, Combine((Term(Gather(input.shape, data.shape, index.flatten())),)), [c.index(input)])]


@reads("pad_packed_sequence")
def _pad(c: Call, data: Tensor, batch_sizes: Tensor, batch_first: bool, padding: float, total: int) -> Steps:
    places = torch.arange(data.numel(), dtype=torch.float64, device=data.device).view(data.shape)
    index = c.func(places, batch_sizes, batch_first, -1.0, total)[0].long()
    result = c.result[0]
    terms, inputs = [Term(Gather(data.shape, result.shape, index.flatten()))], [c.index(data)]
    if bool((index < 0).any()):
        own = torch.arange(result.numel(), device=result.device).view(result.shape).masked_fill(index >= 0, -1)
        terms.append(Term(Gather(result.shape, result.shape, own.flatten())))
        inputs.append(c.constant(torch.full_like(result, padding)))
    return [(result, Combine(tuple(terms)), inputs)]

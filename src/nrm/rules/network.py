"""The relevance network: a tape with a rule for every step, and what each step does to messages.

A **message** at a tensor is the relevance of its neurons. A step that adds contributions (a linear layer, a residual
sum, a batch norm) has columns; dividing an arriving message by the column sums gives its **density**. Densities, not
messages, run through a fused additive step, because all its branches share one column: a branch turns density into
relevance only where it ends, at the input of its last linear step. That is how sums of branches are normalized once,
without copies of neurons and without forming any matrix.

``pull`` carries arrivals at a node one step toward the inputs; ``rise`` and ``value`` are its adjoint, toward the
output. Column sums are the rise of ones.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from nrm.capture import Combine, Linear, Multiply, Node, Pointwise, Select, Softmax, Source, Tape
from nrm.errors import MassError
from nrm.operators import Place, Slice, place_all
from nrm.rules.assignment import Assignment
from nrm.rules.blocks import Blocks
from nrm.rules.columns import ColumnStore
from nrm.rules.composites import Composite, split_products
from nrm.rules.density import (
    EVERYTHING,
    START,
    Arrivals,
    Delivery,
    Density,
    Packet,
    Part,
    Piece,
    Values,
    scaled,
    total_of,
)
from nrm.rules.rules import CONSTANT, AlphaBeta, Flat
from nrm.rules.softmax import SoftmaxColumns


class Network:
    """A tape under rules. Knows steps; knows no questions."""

    def __init__(
        self, tape: Tape, composite: Composite, *, bias: str, zero: str = "sink", normalize: bool | str = True
    ) -> None:
        self.tape = split_products(composite, tape)
        self.rules = Assignment(self.tape, composite, bias)
        self.blocks = Blocks(self.rules)
        self.columns = ColumnStore(self.blocks, bias=bias, zero=zero, normalize=normalize)

    @property
    def composite(self) -> Composite:
        """The composite whose rules the steps have."""
        return self.rules.composite

    @property
    def bias(self) -> str:
        """Whether biases are ignored or inputs."""
        return self.columns.bias

    @property
    def zero(self) -> str:
        """Where the mass of columns without a sum goes."""
        return self.columns.zero

    @property
    def normalize(self) -> bool | str:
        """Whether columns are normalized; False and "raw" are the unnormalized counterparts."""
        return self.columns.normalize

    def perturbed(self, seed: int = 0) -> Network:
        """The same network with every column sum changed by a random relative eps."""
        twin = copy.copy(self)
        twin.columns = self.columns.perturbed(seed)
        return twin

    def absolute(self, steps: Iterable[int]) -> Network:
        """The network of absolute entries, at least for these steps: its relevances bound the sums of absolute ones.

        Entries that are sums of several factors are bounded by the sum of the factors' absolute values. A network
        whose steps have no negative entries is its own.
        """
        if self.normalize is True and all(self._is_nonnegative(i) for i in steps):
            return self
        twin = copy.copy(self)
        twin.blocks, twin.columns = self.blocks.absolute(), self.columns.absolute()
        return twin

    def _is_nonnegative(self, i: int) -> bool:
        """Whether a step is known to have no negative entries."""
        op = self.tape.nodes[i].op
        if isinstance(op, Pointwise):
            return op.offset == 0 and not self.rules.softmax(i)
        if any(self.rules.coefficient(i, p) < 0 for p in range(len(self.tape.nodes[i].inputs))):
            return False
        if not self.rules.is_terminal(i):
            return True
        return not any(r.cancels or (isinstance(r, AlphaBeta) and r.beta) for r in self.rules.leaves(i, START))

    def _share(self, i: int, position: int) -> float:
        """The coefficient of an input."""
        alpha = self.rules.coefficient(i, position)
        return abs(alpha) if self.blocks.is_absolute else alpha

    def release(self) -> None:
        """Forgets the columns; they are computed again when asked for."""
        self.columns.release()

    @property
    def nbytes(self) -> int:
        """Bytes held by the columns."""
        return self.columns.nbytes

    # ---- toward the output -----------------------------------------------------------------------------------

    def value(self, i: int, below: Values) -> Tensor | None:
        """The push into node i: the relevance of an event below, given each neuron of i. None is 0 everywhere."""
        node, op = self.tape.nodes[i], self.tape.nodes[i].op
        parts: list[Tensor] = []
        if isinstance(op, Linear) or (isinstance(op, Combine) and op.joins):
            parts += self._terminal_value(i, below)
        elif isinstance(op, Combine):
            moved = [(t.move, below.at(j, i)) for t, j in zip(op.terms, node.inputs, strict=True)]
            placed = [(move, v) for move, v in moved if isinstance(move, Place) and v is not None]
            parts += [v if move is None else move.apply(v)
                      for move, v in moved if v is not None and not isinstance(move, Place)]  # fmt: skip
            parts += [place_all(placed)] if placed else []
        elif isinstance(op, Pointwise):
            v = below.at(node.inputs[0], i)
            if v is not None and self.rules.softmax(i):
                parts.append(self._softmax(i).push(v))
            elif v is not None:
                parts.append(v if op.offset == 0 else v * self.kept_share(i))
        elif isinstance(op, Select):
            v = below.at(node.inputs[0], i)
            if v is not None:
                parts.append(op.map.apply(v))
        elif isinstance(op, Multiply):
            for position, (move, j) in enumerate(zip(op.moves, node.inputs, strict=True)):
                alpha, v = self._share(i, position), below.at(j, i)
                if alpha != 0 and v is not None:
                    parts.append(alpha * (v if move is None else move.apply(v)))
        parts += self._drain_values(i, below)
        return sum(parts[1:], parts[0]) if parts else None

    def _terminal_value(self, i: int, below: Values) -> list[Tensor]:
        override = self.rules.pool(i)
        rise = self.blocks.rise(i, self.rules.keys(i, override), START, below, override=override)
        if not rise:
            return []
        columns = self.columns[i]
        parts = [d / columns.sums[group] for (_, group), d in rise.items()]
        if columns.spread is not None:
            flat = self.blocks.rise(i, {CONSTANT}, START, below, override=Flat())
            parts += [d * columns.spread for d in flat.values()]
        return parts

    def _drain_values(self, i: int, below: Values) -> list[Tensor]:
        """What neurons of drains (biases, offsets, sinks) contribute to the node they belong to."""
        parts: list[Tensor] = []
        for port, v in below.drains(i):
            if port == "sink":
                sink = self.sink(i)
                if sink is not None:
                    parts.append(v * sink)
                continue
            wide = self._widened(i, v)
            if port == "offset":
                parts.append(wide * self.offset_share(i))
            else:
                columns = self.columns[i]
                for sums, entry in zip(columns.sums, columns.bias, strict=True):
                    if entry is not None:
                        parts.append(wide * (entry / sums))
        return parts

    # ---- toward the input ------------------------------------------------------------------------------------

    def pull(self, i: int, arrivals: Arrivals) -> tuple[list[Delivery], dict[str, Tensor]]:
        """One step toward the inputs: what each input receives, and what goes to the node's own drains."""
        node, op = self.tape.nodes[i], self.tape.nodes[i].op
        message, packets = arrivals.message, list(arrivals.packets)
        drains: dict[str, Tensor] = {}
        self.blocks.leave(i)
        if message is not None and self.rules.is_terminal(i):
            packets += self._normalized(i, message, drains)
            message = None
        deliveries: list[Delivery] = []
        if packets and isinstance(op, Linear):
            deliveries.append(Delivery(node.inputs[0], Arrivals(self.blocks.pull(i, op, packets))))
        elif packets:
            deliveries += [d for packet in packets for d in self._fall(i, packet)]
        if message is not None:
            deliveries += self._move(node, message, drains)
        return deliveries, drains

    def densities(self, i: int, arrivals: Arrivals) -> list[Packet]:
        """Everything that has arrived at an additive step, as density."""
        packets = list(arrivals.packets)
        return packets if arrivals.message is None else packets + self._normalized(i, arrivals.message, {})

    def _normalized(self, i: int, message: Tensor, drains: dict[str, Tensor]) -> list[Packet]:
        columns, override = self.columns[i], self.rules.pool(i)
        if columns.sink is not None:
            self._refuse_dead(i, message, columns.sink)
        density: Density = {}
        for group, sums in enumerate(columns.sums):
            d = message / sums
            density.update({(key, group): d for key in self.rules.keys(i, override)})
            entry = columns.bias[group]
            if entry is not None:
                share = self._narrowed(i, d * entry)
                drains["bias"] = drains["bias"] + share if "bias" in drains else share
        packets = [Packet(density, START, override)]
        if columns.spread is not None:
            packets.append(Packet({(CONSTANT, 0): message * columns.spread}, START, Flat()))
        if columns.sink is not None:
            drains["sink"] = message * columns.sink
        return packets

    def _fall(self, i: int, packet: Packet) -> Iterator[Delivery]:
        """Density through a combination: to branches as density, to plain terms as relevance."""
        node = self.tape.nodes[i]
        assert isinstance(node.op, Combine)
        rule = self.rules.plain_rule(i, packet.rule)
        for position, (term, j) in enumerate(zip(node.op.terms, node.inputs, strict=True)):
            alpha = self._share(i, position)
            if alpha == 0:
                continue
            turns = self.blocks.turns(i, position)
            density = scaled(packet.density, term, None, self.blocks.is_absolute, turns=turns)
            for key, d in density.items():
                d = d if term.move is None else term.move.transpose(d)
                density[key] = d if alpha == 1 else d * alpha
            if self.rules.open[j]:
                yield Delivery(j, Arrivals(packets=[Packet(density, rule, packet.override)]))
            else:
                yield Delivery(j, Arrivals(self.blocks.plain(j, Packet(density, rule, packet.override))))

    def _move(self, node: Node, message: Tensor, drains: dict[str, Tensor]) -> Iterator[Delivery]:
        """Relevance through steps without columns of their own."""
        i, op = node.index, node.op
        if isinstance(op, Combine):
            for term, j in zip(op.terms, node.inputs, strict=True):
                if isinstance(term.move, Slice):
                    yield Delivery(j, Arrivals(piece=Piece(term.move, message)))
                else:
                    yield Delivery(j, Arrivals(message if term.move is None else term.move.transpose(message)))
        elif isinstance(op, Pointwise):
            if self.rules.softmax(i):
                drains["offset"] = self._narrowed(i, message * self.offset_share(i))
                message = self._softmax(i).pull(message)
            elif op.offset != 0:
                drains["offset"] = self._narrowed(i, message * self.offset_share(i))
                dead = self.sink(i)
                if dead is not None:
                    self._refuse_dead(i, message, dead)
                    drains["sink"] = message * dead
                message = message * self.kept_share(i)
            yield Delivery(node.inputs[0], Arrivals(message))
        elif isinstance(op, Select):
            yield Delivery(node.inputs[0], Arrivals(op.map.transpose(message)))
        elif isinstance(op, Multiply):
            for position, (move, j) in enumerate(zip(op.moves, node.inputs, strict=True)):
                alpha = self._share(i, position)
                if alpha != 0:
                    m = message if move is None else move.transpose(message)
                    yield Delivery(j, Arrivals(m if alpha == 1 else m * alpha))
        else:
            assert isinstance(op, Source)

    # ---- reading and drains ----------------------------------------------------------------------------------

    def relevance(self, i: int, arrivals: Arrivals) -> Tensor | None:
        """The relevance of every neuron of a node. None is 0."""
        return total_of(self.relevance_parts(i, arrivals))

    def relevance_parts(self, i: int, arrivals: Arrivals, below: Values | None = None) -> list[Part]:
        """The relevance of every neuron of a node, jointly with an event below if there is one, as sums of products.

        Density becomes relevance here: it is multiplied with the column sums of the branch it would enter.
        """
        parts: list[Part] = []
        if arrivals.message is not None:
            v = None if below is None else self.value(i, below)
            if below is None or v is not None:
                parts.append(Part(arrivals.message, v))
        for packet in arrivals.packets:
            keys = {key for key, _ in packet.density}
            rise = self.blocks.rise(i, keys, packet.rule, below or EVERYTHING, override=packet.override)
            parts += [Part(packet.density[slot], d) for slot, d in rise.items() if slot in packet.density]
        return parts

    def sink(self, i: int) -> Tensor | None:
        """The neurons of a node whose relevance goes to its sink."""
        if self.rules.is_terminal(i):
            return self.columns[i].sink
        op, value = self.tape.nodes[i].op, self.tape.nodes[i].value
        if isinstance(op, Pointwise) and op.offset != 0 and self.zero != "uniform" and bool((value == 0).any()):
            return value == 0
        return None

    def _refuse_dead(self, i: int, message: Tensor, dead: Tensor) -> None:
        if self.zero == "error" and bool((message * dead).any()):
            raise MassError(
                "relevance arrives at columns that sum to 0", where=self.tape.nodes[i].name,
                got=f"{int(((message * dead) != 0).sum())} columns",
                hint="zero='sink' or zero='uniform', another rule for this layer, or bias='input'",
            )  # fmt: skip

    def offset_share(self, i: int) -> Tensor:
        """What an elementwise step gives to its offset, the value that no input explains."""
        node = self.tape.nodes[i]
        assert isinstance(node.op, Pointwise)
        if self.rules.softmax(i):
            return self._softmax(i).remainder
        dead = node.value == 0
        share = (node.op.offset / node.value.masked_fill(dead, 1.0)).masked_fill(dead, 0.0)
        return share.abs() if self.blocks.is_absolute else share

    def _softmax(self, i: int) -> SoftmaxColumns:
        node = self.tape.nodes[i]
        assert isinstance(node.op, Softmax)
        logits = self.tape.nodes[node.inputs[0]].value
        return SoftmaxColumns.of(logits, node.value, node.op.dim, self.blocks.is_absolute)

    def kept_share(self, i: int) -> Tensor:
        """What an elementwise step with an offset passes on; where it is 0, all or nothing, as the zero policy says."""
        node = self.tape.nodes[i]
        assert isinstance(node.op, Pointwise)
        dead = node.value == 0
        kept = 1 - node.op.offset / node.value.masked_fill(dead, 1.0)
        kept = kept.masked_fill(dead, 1.0 if self.zero == "uniform" else 0.0)
        return kept.abs() if self.blocks.is_absolute else kept

    def drain_shape(self, i: int, port: str) -> tuple[int, ...]:
        """The shape of a drain: a sink has one neuron per column, a bias or offset one per sample and channel."""
        node = self.tape.nodes[i]
        if port == "sink":
            return tuple(node.shape)
        lead = (self.tape.batch,) if self._has_owner(node) else ()
        return lead + tuple(node.shape[a] for a in self._bias_axes(node))

    def drain_index(self, i: int, port: str) -> Tensor:
        """For every neuron of a node, the flat index of the neuron of its drain that it gives to; broadcastable."""
        shape = self.drain_shape(i, port)
        own = torch.arange(math.prod(shape), device=self.tape.nodes[i].value.device).view(1, *shape)
        return own[0] if port == "sink" else self._widened(i, own)[0]

    @staticmethod
    def _has_owner(node: Node) -> bool:
        return node.sample is None and node.owner is not None

    def _owned(self, node: Node) -> Tensor:
        """The place of every entry among samples and channels, for a tensor without an axis of samples."""
        assert node.owner is not None
        if node.channel is None:
            return node.owner.flatten()
        channels = torch.arange(node.shape[node.channel], device=node.value.device)
        wide = channels.view(-1, *(1,) * (node.value.ndim - node.channel - 1))
        return (node.owner * len(channels) + wide).flatten()

    @staticmethod
    def _bias_axes(node: Node) -> list[int]:
        return [a for a in (node.sample, node.channel) if a is not None]

    def _narrowed(self, i: int, m: Tensor) -> Tensor:
        node = self.tape.nodes[i]
        kept = self._bias_axes(node)
        m = m.expand(m.shape[0], *node.shape)
        if self._has_owner(node):
            shape = self.drain_shape(i, "bias")
            at = self._owned(node).expand(m.shape[0], -1)
            flat = m.new_zeros(m.shape[0], math.prod(shape)).scatter_add(1, at, m.reshape(m.shape[0], -1))
            return flat.view(m.shape[0], *shape)
        m = m.permute(0, *(a + 1 for a in kept), *(a + 1 for a in range(node.value.ndim) if a not in kept))
        return m.flatten(len(kept) + 1).sum(-1) if node.value.ndim > len(kept) else m

    def _widened(self, i: int, v: Tensor) -> Tensor:
        node = self.tape.nodes[i]
        kept = self._bias_axes(node)
        if self._has_owner(node):
            return v.flatten(1).index_select(1, self._owned(node)).view(v.shape[0], *node.shape)
        order = sorted(range(len(kept)), key=kept.__getitem__)
        v = v.permute(0, *(a + 1 for a in order))
        return v.reshape(v.shape[0], *(n if a in kept else 1 for a, n in enumerate(node.shape)))

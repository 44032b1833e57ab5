"""The relevance network: nodes with units, and the linear maps between them.

A node's **unit** is what its relevance is a multiple of. A density ``rho`` travels down by the transposes of the maps,
and ``R(n) = unit_n rho_n``; an amount travels up by the maps, and where it meets densities the relevance is the sum of
their products. The maps of a node carry the units of what it reads to its own unit: no column sum, no zero test and no
division is left but where a map is built.

A tensor of the captured network has a **plain** node, whose unit is its value (or 1, where a rule reads it whose
entries do not vanish with the value). Where a sum reads it as a branch, it has a node for its part of the sum's
columns; the walks through a tensor are those through all of its nodes. Biases, offsets and sinks are **drains**: nodes
where walks begin, with the unit 1. A **column** node stands between a plain node and its blocks where a rule divides by
column sums.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator

import torch
from torch import Tensor

from nrm.capture import Source, Tape
from nrm.errors import MassError
from nrm.operators import LinearMap, Slice
from nrm.rules import Composite, split_products
from nrm.steps.assignment import Assignment
from nrm.steps.blocks import is_proportional
from nrm.steps.columns import Columns, make_column
from nrm.steps.drains import drain_index, drain_shape, narrowed, widened
from nrm.steps.factors import FactorStore
from nrm.steps.families import family_of
from nrm.steps.maps import Drained, Factored, Local, Map, Scale, Scaled, risen
from nrm.steps.messages import Amounts, Arrivals, Delivery, DensityPiece, Pairing, total_of
from nrm.steps.nodes import BRANCH, COLUMN, DRAIN, PLAIN, Link, RelevanceNode


class Network:
    """A tape under rules, as nodes and maps. Knows steps; knows no questions.

    ``mode`` is "" for the measure itself; the twins of absolute entries have another one (:class:`FactorStore`).
    """

    def __init__(
        self, tape: Tape, composite: Composite, *, bias: str, zero: str = "sink", normalize: bool | str = True,
        spread: bool = False, mode: str = "", rules: Assignment | None = None,
    ) -> None:  # fmt: skip
        self.tape = tape = split_products(composite, tape) if rules is None else tape
        self.composite = composite
        self.bias = bias
        self.zero = zero
        self.normalize = normalize
        self.spread = spread
        self.mode = mode
        self.rules = Assignment(tape, composite, bias) if rules is None else rules
        self.factors = FactorStore(tape, mode)
        self.nodes: list[RelevanceNode] = []
        self.of: dict[int, list[int]] = {}
        """The nodes through which walks pass a tensor."""
        self.columns: dict[int, Columns] = {}
        self._known: dict[Hashable, int] = {}
        self._ones: set[int] = set()
        self._ones = self._find_ones()
        self._units: dict[int, Tensor] = {}
        self._endless = _endless(tape)
        self._twins: dict[str, Network] = {}
        self._source: Network | None = None
        """What this network is a twin of."""
        self._noise: torch.Generator | None = None
        self._build()

    # ---- building --------------------------------------------------------------------------------------------

    def _find_ones(self) -> set[int]:
        """The tensors whose unit is 1: a rule reads them whose entries do not vanish with the value."""
        top = self.tape.output
        # Where the last step converts anyway, an output of 0 can be explained as well: it has a relevance of 1.
        converts = self.rules.is_terminal(top) and not is_proportional(self, top)
        ones = {top} if self.spread or converts else set()
        plain = {top}
        for node in reversed(self.tape.nodes):
            if node.index in plain:
                family = family_of(node.op)
                plain.update(family.reads(self, node))
                ones.update(family.ones(self, node, node.index in ones))
        return ones

    def _build(self) -> None:
        self.plain(self.tape.output)
        own = weakref.proxy(self)  # maps that look something up in the network must not keep it alive
        for i in range(self.tape.output, -1, -1):
            if (i, PLAIN) in self._known:
                family_of(self.tape.nodes[i].op).connect(own, self.tape.nodes[i])

    def node(self, key: Hashable, tensor: int, kind: str, port: str = "") -> tuple[RelevanceNode, bool]:
        """The node under a key, and whether it is new."""
        if key in self._known:
            return self.nodes[self._known[key]], False
        made = RelevanceNode(len(self.nodes), tensor, kind, port)
        self.nodes.append(made)
        self._known[key] = made.index
        if kind in (PLAIN, BRANCH):
            self.of.setdefault(tensor, []).append(made.index)
        return made, True

    def plain(self, i: int) -> RelevanceNode:
        """The node of a tensor by itself."""
        return self.node((i, PLAIN), i, PLAIN)[0]

    def plain_index(self, i: int) -> int | None:
        """The index of a tensor's plain node, if it has one."""
        return self._known.get((i, PLAIN))

    def drain(self, i: int, port: str) -> RelevanceNode:
        """The drain of a tensor's step: its bias, offset or sink."""
        return self.node((i, port), i, DRAIN, port)[0]

    def is_one(self, i: int) -> bool:
        """Whether the unit of a tensor's plain node is 1."""
        return i in self._ones

    def link(self, above: RelevanceNode, below: RelevanceNode, map: Map) -> None:
        """Puts a map between two nodes."""
        above.links.append(Link(below.index, map))
        below.readers += 1

    def local(self, i: int, j: int, move: LinearMap | None = None, post: Scale = None, pre: Scale = None) -> Local:
        """A local map from tensor j to tensor i."""
        if self.mode:
            pre, post = (x.abs() if isinstance(x, Tensor) else x and abs(x) for x in (pre, post))
        nodes = self.tape.nodes
        return Local(nodes[j].shape, nodes[i].shape, self.tape.dtype, pre, move, post)

    def drained(self, i: int, form: Callable[[], Tensor]) -> Drained:
        """The map from the bias or offset of a tensor's step; ``form`` gives the entry of every neuron."""
        node, tape, mode = self.tape.nodes[i], self.tape, self.mode
        return Drained(
            lambda v: widened(tape, node, v), lambda m, entry: narrowed(tape, node, m, entry),
            lambda: drain_index(tape, node, "bias"), node.shape, lambda: form().abs() if mode else form(),
        )  # fmt: skip

    def share(self, i: int, position: int) -> float:
        """The coefficient of an input where several variables meet."""
        alpha = self.rules.coefficient(i, position)
        return abs(alpha) if self.mode else alpha

    def per_unit(self, i: int, j: int) -> Tensor | None:
        """What a map between the values of two tensors is multiplied with where only the lower one has the unit 1."""
        return self.tape.nodes[i].value if self.is_one(j) and not self.is_one(i) else None

    @property
    def takes_shares(self) -> bool:
        """Whether columns are normalized."""
        return self.normalize is True

    # ---- twins -----------------------------------------------------------------------------------------------

    def twin(self, mode: str) -> Network:
        """The network of absolute entries ("absolute"), or of bounds of their sums ("bound")."""
        if mode not in self._twins:
            self._twins[mode] = Network(
                self.tape, self.composite, bias=self.bias, zero=self.zero, normalize=self.normalize,
                spread=self.spread, mode=mode, rules=self.rules,
            )  # fmt: skip
            self._twins[mode]._source = weakref.proxy(self)
        return self._twins[mode]

    def absolute(self, steps: Iterable[int]) -> Network:
        """The network of absolute entries, at least for these steps: its relevances bound the sums of absolute ones.

        Entries that are sums of several factors are bounded by the sum of the factors' absolute values. A network
        whose steps have no negative entries, between units of one sign, is its own.
        """
        if self.mode:
            return self
        return self if self.takes_shares and all(self.is_nonnegative(i) for i in steps) else self.twin("absolute")

    def is_nonnegative(self, i: int) -> bool:
        """Whether a step is known to have no negative shares."""
        if any(self.rules.coefficient(i, p) < 0 for p in range(len(self.tape.nodes[i].inputs))):
            return False
        if self.rules.is_terminal(i):
            return all(rule.nonnegative for rule in self.rules.leaves(i))
        return family_of(self.tape.nodes[i].op).is_nonnegative(self, self.tape.nodes[i])

    def perturbed(self, seed: int = 0) -> Network:
        """The network with everything that is rounded on the way down changed by a random relative eps."""
        twin = Network(
            self.tape, self.composite, bias=self.bias, zero=self.zero, normalize=self.normalize, spread=self.spread,
            rules=self.rules,
        )  # fmt: skip
        twin.columns = {i: column.perturbed(self, i, seed) for i, column in self.columns.items()}
        twin._noise = torch.Generator().manual_seed(seed)
        return twin

    # ---- units -----------------------------------------------------------------------------------------------

    def unit(self, index: int) -> Tensor | None:
        """The unit of a node; None stands for 1 at every neuron."""
        node = self.nodes[index]
        if node.kind == DRAIN or (node.kind == PLAIN and node.tensor in self._ones):
            return None
        if node.kind == PLAIN:
            value = self.tape.nodes[node.tensor].value
            if node.tensor in self._endless:
                value = torch.where(value.isfinite(), value, 0.0)
            return value.abs() if self.mode else value
        if index not in self._units:
            unit = self._risen(node)
            if node.readers < 2:  # nobody will ask again
                return unit
            self._units[index] = unit
        return self._units[index]

    def full_unit(self, index: int) -> Tensor:
        """The unit of a node in its full shape."""
        unit = self.unit(index)
        if unit is not None:
            return unit
        node, like = self.nodes[index], self.tape.nodes[self.nodes[index].tensor]
        shape = drain_shape(self.tape, like, node.port) if node.port else tuple(like.shape)
        return torch.ones(shape, dtype=self.tape.dtype, device=like.device)

    def _risen(self, node: RelevanceNode) -> Tensor:
        """The unit of a branch or a column: what the units below add up to."""
        whole = risen([(link.map, self.full_unit(link.to)[None]) for link in node.links])
        if whole is not None:
            return whole[0]
        like = self.tape.nodes[node.tensor]
        return torch.zeros(like.shape, dtype=like.dtype, device=like.device)

    def converts(self, i: int) -> bool:
        """Whether the columns of a step are divided by their sums."""
        return (i, COLUMN, 0) in self._known

    def column(self, i: int) -> Columns:
        """What the columns of a converting step are divided by; computed once."""
        if i not in self.columns:
            if self.mode:
                assert self._source is not None
                self.columns[i] = self._source.column(i).absolute()
            else:
                self.columns[i] = make_column(self, i)
        return self.columns[i]

    def leave(self, i: int) -> None:
        """Forgets the units of a tensor that a sweep has passed."""
        for network in (self, *self._twins.values()):
            for index in self.of.get(i, ()):
                network._units.pop(index, None)

    def release(self) -> None:
        """Forgets columns and units; they are computed again when asked for."""
        for network in (self, *self._twins.values()):
            network.columns.clear()
            network._units.clear()
            network.factors.forget()
        self._twins.clear()

    @property
    def nbytes(self) -> int:
        """Bytes held by the columns."""
        return sum(t.numel() * t.element_size() for column in self.columns.values() for t in column.tensors)

    # ---- toward the input ------------------------------------------------------------------------------------

    def pull(self, i: int, arrivals: Arrivals) -> tuple[list[Delivery], dict[str, Tensor]]:
        """One step toward the inputs: what each tensor below receives, and the relevance of the step's own drains."""
        deliveries: list[Delivery] = []
        drains: dict[str, Tensor] = {}
        for index, rho in arrivals.items():
            self._fall(i, self.nodes[index], rho, deliveries, drains)
        self.leave(i)
        return deliveries, drains

    def _fall(
        self, i: int, node: RelevanceNode, rho: Tensor, deliveries: list[Delivery], drains: dict[str, Tensor]
    ) -> None:
        if self._noise is not None:
            eps = torch.finfo(rho.dtype).eps
            rho = rho * (1 + eps * torch.randn(rho.shape, generator=self._noise).to(rho))
        for to, map in node.links:
            below = self.nodes[to]
            if isinstance(map, Local) and isinstance(map.move, Slice) and map.pre is None and map.post is None:
                # put together with other pieces when it is read
                deliveries.append(Delivery(below.tensor, Arrivals(pieces={to: DensityPiece(map.move, rho)})))
                continue
            moved = map.transpose(rho)
            if moved is None:
                continue
            if below.kind == DRAIN:
                if below.port == "sink":
                    self._refuse_dead(i, moved)
                drains[below.port] = drains[below.port] + moved if below.port in drains else moved
            elif below.kind == COLUMN:
                self._fall(i, below, moved, deliveries, drains)
            else:
                deliveries.append(Delivery(below.tensor, Arrivals({to: moved})))

    def _refuse_dead(self, i: int, lost: Tensor) -> None:
        if self.zero == "error" and bool(lost.any()):
            raise MassError(
                "relevance arrives at columns that sum to 0", where=self.tape.nodes[i].name,
                got=f"{int((lost != 0).sum())} columns",
                hint="zero='sink' or zero='uniform', another rule for this layer, or bias='input'",
            )  # fmt: skip

    # ---- toward the output -----------------------------------------------------------------------------------

    def amounts(self, i: int, below: Amounts) -> dict[int, Tensor]:
        """The amounts at every node of a tensor, from those below it; what is left out is 0 everywhere."""
        found = {index: self.amount(self.nodes[index], below) for index in self.of.get(i, ())}
        return {index: a for index, a in found.items() if a is not None}

    def amount(self, node: RelevanceNode, below: Amounts) -> Tensor | None:
        """The amount at one node."""
        carried: list[tuple[Map, Tensor]] = []
        apart: list[Tensor] = []
        for to, map in node.links:
            lower = self.nodes[to]
            if lower.kind == DRAIN:
                a = below.drain(node.tensor, lower.port)
            elif lower.kind == COLUMN:
                a = self.amount(lower, below)
            else:
                many = below.together(to, node.tensor)
                if many is not None and isinstance(map, Factored):
                    apart.append(map.apply_by_channel(*many))
                    continue
                a = below.at(to, node.tensor)
            if a is not None:
                carried.append((map, a))
        return risen(carried, apart)

    # ---- reading ---------------------------------------------------------------------------------------------

    def relevance(self, arrivals: Arrivals) -> Tensor | None:
        """The relevance of every neuron of a tensor or drain from what has arrived there. None is 0."""
        return total_of(self.products(arrivals))

    def products(self, arrivals: Arrivals) -> list[Pairing]:
        """The relevance of every neuron as sums of products: densities times units."""
        units = ((rho, self.unit(index)) for index, rho in arrivals.items())
        return [Pairing(rho, None if unit is None else unit[None]) for rho, unit in units]

    def reach(self, index: int) -> Tensor | None:
        """The neurons of a node through which any walk can have relevance, whatever else it passes; None: all of them.

        Where the unit is 0, walks below may still cancel (a sum of 0), or all be 0 (behind a ReLU that is off). The
        first is looked for through steps from neuron to neuron alone, and taken for granted elsewhere.
        """
        unit = self.unit(index)
        if unit is None or bool((unit != 0).all()):
            return None
        total = (unit != 0).to(unit)
        for to, map in self.nodes[index].links:
            if not isinstance(map, Local | Scaled):
                return None
            below = self.reach(to)
            if below is None and self.nodes[to].kind == COLUMN:
                return None
            amount = torch.ones_like(self.full_unit(to)) if below is None else below.to(unit)
            total = total + map.bound(amount[None])[0]
        return total != 0

    def started(self, relevance: Tensor, density: Tensor | None = None) -> Arrivals:
        """The relevance of the output's neurons as densities, or densities themselves where they are known.

        Nothing is a share of an output of 0: its density would be infinite, and is left out.
        """
        top = self.plain(self.tape.output).index
        unit = self.unit(top)
        if unit is None:
            return Arrivals({top: relevance})
        if density is not None:
            return Arrivals({top: density})
        # One tensor of that size, where a language model has a number for every token of its vocabulary at every place.
        found = unit.masked_fill(unit == 0, torch.inf)[None]
        return Arrivals({top: torch.div(relevance, found, out=found if relevance.shape == found.shape else None)})

    def magnitudes(self, arrivals: Arrivals) -> Arrivals:
        """Densities whose relevance is the absolute value of what has arrived, for :meth:`absolute`'s network."""
        found = {}
        for index, rho in arrivals.items():
            unit = None if self.mode else self.unit(index)
            found[index] = rho.abs() if unit is None else rho.abs() * unit.sign()
        return Arrivals(found)

    def mixing(self, i: int, arrivals: Arrivals) -> Iterator[tuple[Factored, Tensor]]:
        """What has arrived at a linear step, as densities of the maps that mix its channels."""
        for index, rho in arrivals.items():
            for to, map in self.nodes[index].links:
                if isinstance(map, Factored):
                    yield map, rho
                elif self.nodes[to].kind == COLUMN:
                    moved = map.transpose(rho)
                    if moved is not None:
                        yield from self.mixing(i, Arrivals({to: moved}))

    def drain_shape(self, i: int, port: str) -> tuple[int, ...]:
        """The shape of a drain: a sink has one neuron per column, a bias or offset one per sample and channel."""
        return drain_shape(self.tape, self.tape.nodes[i], port)


def _endless(tape: Tape) -> set[int]:
    """The tensors with entries that are not finite, as a border of -inf before a maximum: nobody's choice.

    They come from constants, and reach what reads these; infinitely much of nothing would be no number.
    """
    found: set[int] = set()
    for node in tape.nodes:
        asked = any(i in found for i in node.inputs) if node.inputs else isinstance(node.op, Source)
        if asked and not bool(node.value.isfinite().all()):
            found.add(node.index)
    return found

"""The measure: one object that answers every question about one prediction."""

from __future__ import annotations

import importlib
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, final

from torch import Tensor

from nrm.capture import patch_square, plain_execution
from nrm.errors import QuestionError
from nrm.measure.asking import ask, ask_in_units
from nrm.measure.check import Check
from nrm.measure.choosing import Edges, find_circuit, refuse_options
from nrm.measure.circuit import Circuit
from nrm.measure.difference import Difference
from nrm.measure.direct import DirectEdges, Ends, direct_edges, plan_direct
from nrm.measure.inner import Inner
from nrm.measure.inside import CircuitPart
from nrm.measure.labels import Names, label_flows
from nrm.measure.layers import Cut, LayerTable, layer_table
from nrm.measure.lift import FORMS, lift_of, lifted_flows, read_form
from nrm.measure.parts import InputParts, find_parts
from nrm.measure.planning import Planner, plan_of
from nrm.measure.searching import flows_of, walks_of
from nrm.measure.show import as_html, as_text, describe, measure_rows
from nrm.measure.subgraphs import subgraphs_of
from nrm.measure.table import answers_by_block, tabulate
from nrm.measure.tokens import find_tokens
from nrm.measure.weighing import read_additive
from nrm.questions import Argument, Base, Formula, Frame, Layer, Partition, Question, Set, Site, read_partitions
from nrm.search import Flows, Found, Request, Subgraphs, Walk
from nrm.tables import Results


@final
class Measure:
    """The relevance measure of one prediction (of every sample of a batch, each with its own).

    Called with sets and partitions of layers it gives their joint relevance, with ``given=`` the conditional one.
    ``inner`` is for the other rooms of this package.
    """

    def __init__(self, inner: Inner) -> None:
        self.inner = inner

    # ---- questions -------------------------------------------------------------------------------------------

    def __call__(self, *arguments: Argument, given: Argument | Sequence[Argument] | None = None) -> Tensor:
        """The relevance of all walks that pass through everything asked for: ``(batch, *axes)``.

        Sets are fixed; layers and partitions become axes, in the order of the arguments. ``given`` divides by the
        relevance of its own events; its free variables come last.
        """
        return ask(self.inner, Question.read(arguments, given))

    def ask(self, question: Question) -> Tensor:
        """The answer to a question that was read before: ``(batch, *axes)``."""
        return ask(self.inner, question)

    @property
    def plan(self) -> Planner:
        """How a question would be answered, and what it would cost; nothing is computed: ``R.plan(*arguments)``.

        ``R.plan.dividends``, ``R.plan.expect``, ``R.plan.additive`` and ``R.plan.direct`` plan the methods of these
        names.
        """
        return Planner(
            partial(plan_of, self.inner), partial(read_additive, self.inner), partial(plan_direct, self.inner)
        )

    def table(
        self, *arguments: Argument, given: Argument | Sequence[Argument] | None = None, **columns: Tensor
    ) -> Results:
        """The answer ``R(*arguments, given=...)`` as a table: with the names, numbers and labels of its axes.

        ``columns`` are tensors of your own in the shape of that answer, by name (contributions, activations, additive
        relevance); with them, only they are in the table. Of a question about sets alone a column may be what
        ``R.dividends`` gives: an axis for every set. ``to_pandas()`` and ``to_xarray()`` hand the table over,
        ``nrm.save(path, pairs=table)`` keeps it.

        >>> import nrm, torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> R = nrm.measure(model, torch.ones(1, 2), labels={"input": ["age", "bmi"]})
        >>> R.table(R.input, R["1"].channels[[3, 5]]).axes["relevance"]
        ('sample', 'input', '1.channels[[3, 5]]')
        >>> R.table(R.input).labels
        {'input': ('age', 'bmi')}
        """
        return tabulate(self, self.inner.places, Question.read(arguments, given), columns)

    def each(
        self, partition: Partition | Layer, *arguments: Argument, given: Argument | Sequence[Argument] | None = None
    ) -> Iterator[tuple[Set, Tensor]]:
        """The answers for every block of a partition, one after the other: the block, and ``R(block, *arguments)``.

        For results that are too large as one table, such as a heat map per channel. Blocks are worked off in chunks
        that fit into the memory bound.

        >>> import nrm, torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> R = nrm.measure(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(1, 4))
        >>> for block, heat in R.each(R["1"].channels[:2], R.input):
        ...     print(block, tuple(heat.shape))
        1.channels[:2][0] (1, 4)
        1.channels[:2][1] (1, 4)
        """
        return answers_by_block(self, read_partitions([partition])[0], arguments, given)

    def lift(
        self, *arguments: Argument, given: Argument | Sequence[Argument] | None = None, form: str = "lift"
    ) -> Tensor:
        """How much more parts share than independent ones would: their joint relevance over the product of theirs.

        ``R.lift(a.channels, b.channels)`` is ``R(A, B) / (R(A) R(B))`` for every pair, in the shape of
        ``R(a.channels, b.channels)``; more parts have more factors, ``given`` conditions all of them. 1 is
        independence, 2 is twice as much. It is NaN where a marginal is 0 or lost in rounding, and a warning says where
        one is below 0.1 % of the total variation inside it: relevances of both signs cancel there, and a quotient says
        little. ``form="excess"`` is the joint relevance minus the product, defined everywhere; its sums over a cut
        are 0. ``R.flows(..., by="lift")`` finds the largest ones.

        >>> import nrm, torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> R = nrm.measure(model, torch.ones(1, 4), rules=nrm.ZPlus())
        >>> x, a = R.input, R["1"].channels
        >>> bool(torch.allclose(R.lift(x, a, form="excess"), R(x, a) - R(x)[:, :, None] * R(a)[:, None], atol=1e-6))
        True
        """
        question = Question.read(arguments, given)
        return lift_of(Measure(self.inner.about(question)), question, form)

    def flows(
        self, *arguments: Argument, k: int = 10, given: Set | Sequence[Set] | None = None, sign: str = "+",
        method: str = "exact", effort: float = 300, by: str = "relevance", least: float | None = None,
    ) -> Flows:  # fmt: skip
        """Each sample's k combinations of blocks, one of every partition, with the largest relevance, best first.

        ``sign="-"`` finds the most negative ones, ``"abs"`` the largest of either sign. Sets among the arguments and in
        ``given`` are fixed events; ``given`` also divides the shares. The lists are exact where ``certified`` says so;
        a search that would take more than ``effort`` forward passes ends with a ``gap``. ``method="greedy"`` goes down
        layer by layer and keeps the k best prefixes, as a comparison. ``R(x, *flow)`` is the heat map of a flow.

        ``by="lift"`` ranks by :meth:`lift`, among flows with a relevance of at least ``least`` (0.001 unless it is
        given), ``by="excess"`` by joint relevance minus the product of marginals: exact where the whole table takes no
        more than ``effort``, else among the largest flows, with the ``gap`` that others may have.

        >>> import nrm, torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
        >>> R = nrm.measure(model, torch.ones(1, 4))
        >>> flows = R.flows(R["1"].channels, R["3"].channels, k=2)
        >>> flows.certified
        (True,)
        >>> bool(torch.isclose(R(*flows[0][0])[0], torch.tensor(flows[0][0].relevance)))
        True
        """
        request = Request.read(k, sign, method, effort)
        question = Question.read(arguments, given)
        question.refuse_for_flows()
        read_form(by, ("relevance", *FORMS), "by")
        inner = self.inner.about(question)
        if by != "relevance":
            return label_flows(lifted_flows(Measure(inner), question, by, least, request), inner.places, inner.names)
        if least is not None:
            raise QuestionError("least is for flows ranked by lift", got=f"least={least!r}", hint="by='lift'")
        return flows_of(inner, question, request)

    def walks(self, k: int = 10, sign: str = "+", *, to_input: bool = False) -> Found[Walk]:
        """Each sample's k single walks with the largest relevance, best first; exact.

        ``sign="-"`` finds the most negative ones, ``"abs"`` the largest of either sign. Walks of equal relevance are
        one entry with its multiplicity. Where the first layer has the Flat rule, all its inputs are alike and walks end
        at its output, unless ``to_input``. ``R(*walk)`` is a walk's relevance by messages.

        >>> import nrm, torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
        >>> model[0].weight.data = torch.tensor([[1.0, 2.0], [1.0, 0.0]])
        >>> model[2].weight.data = torch.tensor([[3.0, 1.0]])
        >>> R = nrm.measure(model, torch.ones(1, 2))
        >>> print(R.walks(k=2))
        walks of sample 0
          1  0.6  output[0] <- 0[0] <- input[1]
          2  0.3  output[0] <- 0[0] <- input[0]
        """
        return walks_of(self.inner, k, sign, to_input)

    def subgraphs(self, size: int, k: int = 10, sign: str = "+", *, effort: float = 300) -> Subgraphs:
        """Each sample's k connected subgraphs of ``size`` nodes with the largest relevance, best first.

        The relevance of a set of nodes is that of all walks which begin at its features (and those of its edges) and
        visit no node outside it in any layer: subgraph relevance as in GNN-LRP. Nodes are connected by edges in either
        direction. ``sign="-"`` finds the most negative ones, ``"abs"`` the largest of either sign. Lists are exact
        where ``certified`` says so; a search that would take more than ``effort`` forward passes ends with a ``gap``.
        ``R(*subgraph)`` is a subgraph's relevance, ``R(x, *subgraph)`` its heat map, and ``nrm.plot.graph`` marks it.

        >>> import nrm, torch
        >>> class Net(torch.nn.Module):
        ...     def forward(self, x, edge_index):
        ...         for _ in range(2):
        ...             x = x + torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        ...         return x.sum(0, keepdim=True)
        >>> path = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
        >>> R = nrm.measure(Net(), (torch.tensor([[1.0], [2.0], [3.0], [0.0]]), path))
        >>> print(R.subgraphs(2, k=2))
        subgraphs of sample 0
          1  0.4444  nodes 1, 2
          2  0.2667  nodes 0, 1
        """
        return subgraphs_of(self.inner, size, Request.read(k, sign, "exact", effort))

    def dividends(self, *events: Set | Formula) -> Tensor:
        """The relevance of all walks by what they visit, every combination of events by itself: ``(batch, 2, 2, ...)``.

        Every event, a set or ``nrm.visits(...)``, has an axis: entry 1 is visiting it, entry 0 avoiding it. This is the
        truth table of all formulas about these events, and adds up to 1. It also has the Harsanyi dividends (the
        Moebius transform) of the game whose players are the events and whose value is the relevance of all walks that
        avoid every event outside a coalition: that value is ``table.cumsum(1).cumsum(2)...``.

        >>> import nrm, torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> R = nrm.measure(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(1, 4))
        >>> A, B = R.input[0], R["1"].channel([1, 2])
        >>> table = R.dividends(A, B)
        >>> bool(torch.isclose(table[0, 1, 0], R(nrm.visits(A) & ~nrm.visits(B))[0]))
        True
        """
        return ask(self.inner, Question.combinations(events))

    def expect(
        self, weights: Mapping[Layer | Set, Any], *arguments: Argument,
        given: Argument | Sequence[Argument] | None = None,
    ) -> Tensor:  # fmt: skip
        """The relevance of all walks asked for, each times the sum of the weights of the neurons it visits.

        ``weights`` has numbers, or tensors that broadcast to a layer from the right (with all axes: one per sample),
        for layers and for sets. ``arguments`` and ``given`` are as in ``R(...)``; without any, all walks count. Weights
        of 1 on one set give its relevance, weights of 1 on any cut the relevance of the arguments themselves.

        >>> import nrm, torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> R = nrm.measure(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(1, 4))
        >>> a = R["1"]
        >>> bool(torch.isclose(R.expect({a.channel(3): 1.0}), R(a.channel(3))))
        True
        >>> R.expect({a.channel(3): 0.5, R.input: torch.rand(4)}, R.input).shape
        torch.Size([1, 4])
        """
        return ask(self.inner, Question.weighted(weights, arguments, given))

    def additive(
        self, *parts: Set | Layer | Partition, at: Argument | Sequence[Argument] | None = None,
        layers: Sequence[Cut | Layer | str] | None = None,
    ) -> Tensor:  # fmt: skip
        """The additive relevance of neurons anywhere in the network: every walk is shared out evenly over its layers.

        Sets together are one set of neurons; it grows with every neuron that is added, and all neurons of the network
        have 1. A single layer or partition has an axis: each of its blocks by itself. ``at`` reads where the walks of
        the sets pass: ``at=R.input`` is the heat map. ``layers`` shares walks out over these cuts only (a layer stands
        for the cut through it).

        >>> import nrm, torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> R = nrm.measure(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(1, 4))
        >>> a, x = R["1"], R.input
        >>> bool(torch.isclose(R.additive(a.channel(3)), R(a.channel(3)) / 3))  # a chain of three layers
        True
        >>> R.additive(a.channels).shape, R.additive(a.channel(3), x[0], at=x).shape
        (torch.Size([1, 8]), torch.Size([1, 4]))
        """
        return ask(self.inner, read_additive(self.inner, parts, at, layers))

    def direct(self, writers: Ends = None, readers: Ends = None, *, positions: bool = False) -> DirectEdges:
        """The direct edges of the residual stream: every writer with every reader, ``(batch, writers, readers)``.

        Writers are what the stream begins with, attention heads, other branches and biases; readers are the queries,
        keys and values of heads, other branches, and the output. An edge has the walks between them that take skips
        only; ``R(head, head)`` has the indirect ones as well. Stream, writers and readers are found by structure, in
        transformers and in residual convolutional networks alike. ``writers`` and ``readers`` choose by name,
        ``positions`` keeps the position of the stream at which an edge lies. After the base sweep, all edges are one
        product for each reader.

        >>> import nrm, torch
        >>> from torch import nn
        >>> class Block(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        ...     def forward(self, x):
        ...         return x + self.down(self.up(x).relu())
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(Block(), Block(), nn.Linear(4, 1))
        >>> R = nrm.measure(model, torch.rand(1, 4), against=torch.zeros(1, 4))
        >>> edges = R.direct()
        >>> [str(w) for w in edges.writers], [str(r) for r in edges.readers]
        (['input', '0.down', '1.down'], ['0.down', '1.down', 'output'])
        >>> round(float(edges.relevance[0, :, 2].sum()), 4)  # everything that reaches the output comes by one edge
        1.0
        """
        return direct_edges(self.inner, writers, readers, positions)

    def circuit(
        self, *, top: float | None = None, mass: float | None = None, by: str = "share", edges: Edges | None = None,
        positions: bool = False, chains: int = 0,
    ) -> Circuit:  # fmt: skip
        """A circuit: a set of direct edges of the residual stream, and the mass of the walks that stay inside it.

        ``top`` is a number of edges or a share of all: those with the largest absolute relevance that lie on a way to
        the output. ``mass`` asks for a small set of that mass (not the smallest): edges that help first, and as many of
        those that hinder as make it fit. ``by="flow"`` shrinks the network step by step to the edges with the largest
        flow inside what is left, down to ``top`` or as long as ``mass`` stays. ``edges`` gives them by hand: pairs of
        names with ``*`` and ``?``, marks, or another circuit. ``positions`` chooses edges at single positions, and
        ``chains`` asks for so many of the strongest ways through the circuit.

        The mass of a contrast predicts how much of the difference comes back when everything outside is taken from the
        reference; ``nrm.evaluate.patch`` measures it. Of several samples, shares are those of their mean difference.

        >>> import nrm, torch
        >>> from torch import nn
        >>> class Block(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        ...     def forward(self, x):
        ...         return x + self.down(self.up(x).relu())
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(Block(), Block(), nn.Linear(4, 1))
        >>> R = nrm.measure(model, torch.rand(1, 4), against=torch.zeros(1, 4))
        >>> everything = R.circuit(top=1.0)
        >>> len(everything), round(everything.mass, 4)
        (6, 1.0)
        >>> by_hand = R.circuit(edges=[("input", "1.down"), ("1.down", "output")])
        >>> by_hand.nodes
        ['input', '1.down', 'output']
        >>> by_hand <= everything
        True
        """
        refuse_options(top, mass, by, edges)
        parts = [CircuitPart.of(self.inner, positions)]
        return find_circuit(parts, top=top, mass=mass, by=by, edges=edges, chains=chains)

    def in_units(self, *question: Argument) -> Tensor:
        """``R(*question)`` in units of the output: every share times the explained output of its sample.

        The measure of everything is then the output itself, so that samples, classes and models can be compared, and
        an output close to 0, whose shares are large and cancel, is answered as well as any other.

        >>> import nrm, torch
        >>> model = torch.nn.Linear(2, 1)
        >>> _ = model.load_state_dict({"weight": torch.tensor([[2.0, -1.0]]), "bias": torch.tensor([-1.0])})
        >>> R = nrm.measure(model, torch.tensor([[3.0, 1.0]]))  # 2 * 3 - 1 - 1 = 4
        >>> R.in_units(R.input), R.in_units(R.biases[0])
        (tensor([[ 6., -1.]]), tensor([[-1.]]))
        """
        return ask_in_units(self.inner, Question.read(question))

    def values(self, layer: Layer | str) -> Tensor:
        """The activations of a layer: ``(batch, *layer shape)``."""
        layer = Layer(layer) if isinstance(layer, str) else layer
        site, frame = self.resolve(layer)
        if site.port:
            raise QuestionError(f"{layer} has no activations", got=repr(layer), expected="a tensor of the network")
        return self.inner.mine(frame.to_samples(self.inner.tape.here.nodes[site.node].value[None])[0]).clone()

    def __sub__(self, other: object) -> Difference:
        """The difference of two measures: of two targets, two inputs, or two checkpoints of one model."""
        return Difference(self, other) if isinstance(other, Measure) else NotImplemented

    # ---- places ----------------------------------------------------------------------------------------------

    def __getitem__(self, name: str | Layer) -> Layer:
        """The layer of this name, checked against this capture."""
        return self.inner.places.known(name if isinstance(name, Layer) else Layer(name))

    __iter__ = None

    def _ipython_key_completions_(self) -> list[str]:
        return self.inner.places.names()

    def find(self, pattern: str) -> list[Layer]:
        """The layers whose name matches a pattern with ``*`` and ``?``, in the order of the forward pass."""
        return self.inner.places.find(pattern)

    @property
    def input(self) -> Layer:
        """The user's input as a layer."""
        return self["input"]

    @property
    def output(self) -> Layer:
        """The explained output as a layer."""
        return self["output"]

    @property
    def tokens(self) -> Partition:
        """The tokens of a text, each with all that the model adds up for it: word, position, type.

        An axis, as ``R.input.positions`` is for models with a single embedding: ``R(R.tokens)`` is the relevance of
        every token, ``R.tokens[3]`` an event. Where embeddings are not added token by token, only the words count.

        >>> import nrm, torch
        >>> from torch import nn
        >>> class Model(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.words, self.places = nn.Embedding(9, 4), nn.Embedding(6, 4)
        ...         self.head = nn.Linear(4, 2)
        ...     def forward(self, ids):
        ...         tokens = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        ...         return self.head(tokens.relu().mean(1))
        >>> _ = torch.manual_seed(0)
        >>> R = nrm.measure(Model(), torch.tensor([[3, 1, 4]]), rules="lrp-0", bias="ignore")
        >>> R(R.tokens).shape, bool(torch.isclose(R(R.tokens).sum(), R(R.input.all) + R(R["places.weight"].all)))
        (torch.Size([1, 3]), True)
        """
        return self[find_tokens(self.inner.tape, self.inner.network.rules.reached).name].positions

    @property
    def parts(self) -> InputParts:
        """Everything that the model reads as one axis: images by patches, sounds by frames, texts by tokens.

        It is a cut, so that ``R(R.parts)`` adds up to 1 with the model's constants (biases, tables of positions), each
        of which is one unit, after the others. ``R.parts["image"]`` is one thing alone, ``R.parts.split(R(R.parts))``
        has the answer by things.

        >>> import nrm, torch
        >>> from torch import nn
        >>> class Model(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.look, self.words, self.head = nn.Conv2d(1, 4, 4, 4), nn.Embedding(9, 4), nn.Linear(4, 2)
        ...     def forward(self, pixel_values, input_ids):
        ...         read = [self.look(pixel_values).flatten(2).mT, self.words(input_ids)]
        ...         return self.head(torch.cat(read, 1).relu().mean(1))
        >>> _ = torch.manual_seed(0)
        >>> x = {"pixel_values": torch.rand(1, 1, 8, 8), "input_ids": torch.tensor([[3, 1, 4]])}
        >>> R = nrm.measure(Model(), x, rules="lrp-0", bias="input")
        >>> R.parts
        parts(image 2x2, text 3, 2 constants)  # a cut: their relevances add up to 1
        >>> R(R.parts).shape, round(float(R(R.parts).sum()), 4), R(R.parts["text"]).shape
        (torch.Size([1, 9]), 1.0, torch.Size([1, 3]))
        >>> {name: tuple(part.shape) for name, part in R.parts.split(R(R.parts)).items()}
        {'image': (1, 2, 2), 'text': (1, 3), 'constants': (1,)}
        """
        return find_parts(self.inner.places, patch_square(self.inner.origin.model))

    @property
    def inputs(self) -> Cut:
        """The whole input cut: the user's tensors, inputs in the middle, biases, offsets and sinks. Its mass is 1."""
        return self.inner.places.inputs()

    @property
    def biases(self) -> list[Layer]:
        """The biases that receive relevance, as layers of shape (channels,)."""
        return self.inner.places.biases()

    def edge(self, source: str | Layer, consumer: str | Layer) -> Layer:
        """The copy of a tensor on its way to one of its consumers."""
        names = [x.name if isinstance(x, Layer) else x for x in (source, consumer)]
        return self[Layer(names[0], consumer=names[1])]

    def cut(self, layer: Layer | str) -> Cut:
        """The cut through a layer: the layer and everything that bypasses it. Its mass is 1."""
        return self.inner.places.cut(Layer(layer) if isinstance(layer, str) else layer)

    # ---- facts -----------------------------------------------------------------------------------------------

    @property
    def base(self) -> Base:
        """The kept sweep without events; computed when first needed."""
        return self.inner.kept.base

    @property
    def samples(self) -> range:
        """The numbers of the batch's samples that this measure is about."""
        return self.inner.samples

    def resolve(self, layer: Layer) -> tuple[Site, Frame]:
        """Where a layer is in the network, and its geometry; for the other rooms of this package."""
        return self.inner.resolve(layer)

    def __len__(self) -> int:
        return len(self.inner.samples)

    @property
    def prediction(self) -> Tensor:
        """Each sample's largest output: its class, or its index along every axis if the output has several."""
        return self.inner.mine(self.inner.target.coordinates(self.inner.target.prediction)).clone()

    @property
    def target(self) -> Tensor | str:
        """The explained output of each sample in the same form, or how relevance is spread over the outputs.

        Such indices are a target, too: ``nrm.measure(..., target=R.target)`` explains the same outputs again.
        """
        if self.inner.target.index is None:
            return str(self.inner.target.spread)
        return self.inner.mine(self.inner.target.coordinates(self.inner.target.index)).clone()

    @property
    def value(self) -> Tensor:
        """The explained output of each sample; relevance is a share of it."""
        return self.inner.mine(self.inner.target.value).clone()

    @property
    def here(self) -> Tensor:
        """The output of each sample that a contrast explains, here; ``R.here - R.there`` is ``R.value``."""
        runs = self.inner.target.runs
        return self.value if runs is None else self.inner.mine(runs[0]).clone()

    @property
    def there(self) -> Tensor:
        """The output in the reference of each sample; 0 of a measure that has none."""
        runs = self.inner.target.runs
        return self.value.new_zeros(len(self)) if runs is None else self.inner.mine(runs[1]).clone()

    @property
    def labels(self) -> dict[str, Names]:
        """Names for classes (``"output"``) and input positions (``"input"``), used wherever something is shown."""
        return self.inner.labels

    @property
    def rules(self) -> str:
        """The composite's name."""
        return self.inner.network.composite.name

    @property
    def layers(self) -> LayerTable:
        """Name, shape, channel axis, kind, whether it is a cut, and mass of every layer."""
        self.inner.origin.check_fresh()
        with plain_execution():
            flags = self.inner.places.cut_flags(), self.inner.places.bypassed()
            return layer_table(self.inner.network, self.base, *flags, self.samples)

    def sample(self, i: int) -> Measure:
        """One sample's measure."""
        index = operator.index(i) if hasattr(i, "__index__") else len(self)
        if not -len(self) <= index < len(self):
            raise QuestionError("no such sample", got=str(i), expected=f"0 to {len(self) - 1}")
        return Measure(self.inner.sample(self.samples[index]))

    def check(self, *, strict: bool = True) -> Check:
        """The certificate: does mass hold, where did it go, and how far may the numbers be trusted.

        Warns and raises as its verdict demands; ``strict=False`` returns the certificate whatever it says.
        """
        result = self.inner.certificate()
        if strict:
            result.speak()
        return result

    def report(self, path: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """Everything about this prediction on one page: a file if there is a path, else shown by a notebook.

        The page needs no network and no server. ``layers=`` chooses its columns (names, ``(name, "clusters")``,
        partitions), ``nodes=`` how many blocks of each are shown, ``image=`` what is drawn under the heat maps,
        ``flows=`` how many chains are listed, ``title=`` its title; ``store=`` (what :func:`nrm.relmax` gave, or its
        folder) and ``dataset=`` add the samples in which nodes count most. A page is about one sample:
        ``R.sample(0).report()``.
        """
        room = importlib.import_module("nrm.report")  # a later room: it asks measures, and is needed only here
        made = room.Report(room.View(self, **options).whole())
        if path is not None:
            made.save(path)
        return made

    def explore(self, **options: Any) -> Any:
        """The samples of this measure on a page that answers clicks; a notebook shows it inline.

        It is served on this machine beside the caller, until ``close()`` of what is returned; ``open=True`` opens a
        browser, ``port=`` chooses the port. A measure keeps no inputs that are not numbers: for other classes and other
        texts, ``nrm.explore(model, data)``. Needs the extra ``web``.
        """
        return importlib.import_module("nrm.explorer").explore_measure(self, **options)

    # ---- resources -------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes held by this measure: activations, columns and kept messages (weights are the model's own)."""
        return self.inner.tape.nbytes + self.inner.kept.nbytes

    def release(self) -> None:
        """Forgets kept messages and columns; the next question computes them again."""
        self.inner.kept.release()

    def __enter__(self) -> Measure:
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def describe(self, check: Check | None = None) -> dict[str, Any]:
        """Everything about this measure that a file should say, as plain data; ``check`` is a known certificate."""
        return describe(self, check or self.check(strict=False))

    def __repr__(self) -> str:
        return as_text("normalized relevance measure", self._rows())

    def _repr_html_(self) -> str:
        return as_html("normalized relevance measure", self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        inner = self.inner
        return measure_rows(inner.network, inner.target, inner.names, inner.light, inner.samples)

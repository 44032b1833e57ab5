"""Where a layer is on the tape: tensors, edges, drains, and the cuts through them."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nrm.capture import AttentionStep, Graphs, Linear, Node, Source, row_nodes, unknown_layer
from nrm.errors import QuestionError
from nrm.measure.attention import READS, find_read, only_attention
from nrm.measure.edges import EdgeStep, find_edge_steps, number_among
from nrm.measure.layers import Cut
from nrm.measure.tokens import find_tokens, follow_tokens
from nrm.questions import (
    EDGES,
    SKIP,
    Base,
    Blocks,
    Frame,
    Kept,
    Layer,
    Partition,
    Site,
    attention_frame,
    drain_name,
    frame_at,
)
from nrm.steps import Network

PORTS = ("bias", "offset", "sink")


class Places:
    """The layers of one measure: from a name to a site with its geometry."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self.network: Network = kept.network
        self._tape = kept.network.tape

    @property
    def batch(self) -> int:
        """The number of samples."""
        return self._tape.batch

    @property
    def _base(self) -> Base:
        return self._kept.base

    @functools.cached_property
    def token_axes(self) -> dict[int, int]:
        """The axis of tokens in every tensor that has a position for each of them; none where the input is no text."""
        try:
            return follow_tokens(self._tape, find_tokens(self._tape, self.network.rules.reached))
        except QuestionError:
            return {}

    # ---- names -----------------------------------------------------------------------------------------------

    def resolve(self, layer: Layer) -> tuple[Site, Frame]:
        """The site of a layer, and its geometry."""
        if not isinstance(layer, Layer):
            raise QuestionError("not a layer", got=repr(layer)[:120], hint="R['name'] or nrm.layer('name')")
        if layer.consumer == EDGES:
            return self._along_edges(layer)
        if layer.consumer is not None:
            source, consumer = self._edge_ends(layer)
            return Site(source.index, consumer.index), self.frame(source, str(layer))
        if layer.name == "input" and len(self._tape.inputs) == 1:  # the user's input, whatever modules are called
            node = self._tape.nodes[self._tape.inputs[0]]
            return Site(node.index), self.frame(node, "input")
        if layer.name == "input" and len(self._tape.names.get("input", ())) > 1:
            raise self._several_inputs()
        read = find_read(self._tape, layer.name) if layer.name.endswith(READS) else None
        if read is not None:
            node = self._tape.nodes[read.tensor]
            heads = (len(node.shape) - 3, node.shape[-3]) if len(node.shape) > 3 else None
            return Site(read.tensor, read.reader), replace(self.frame(node, layer.name), heads=heads)
        drain = self._drain(layer.name)
        if drain is not None:
            return drain
        node = self._tape.find(layer.name)
        return Site(node.index), self.frame(node, layer.name)

    def attention(self, layer: Layer) -> AttentionStep | None:
        """The attention step whose edges a layer stands for; None for a tensor, and for the edges of a graph."""
        if layer.consumer != EDGES or find_edge_steps(self._tape, layer.name):
            return None
        return only_attention(self._tape, layer.name, "edges")

    def frame_of(self, layer: Layer) -> Frame:
        """The geometry of a layer, edges of attention included."""
        step = self.attention(layer)
        return self.resolve(layer)[1] if step is None else attention_frame(self.network, step, f"{layer.name}.edges")

    def frame(self, node: Node, label: str | None = None) -> Frame:
        """The geometry of a tensor."""
        return frame_at(self.network, Site(node.index), label)

    def steps(self, layer: Layer) -> list[int]:
        """The nodes of the hidden states of a layer."""
        if layer.consumer is not None:
            raise QuestionError("an edge has no steps", got=repr(layer))
        return self._tape.find_steps(layer.name)

    def known(self, layer: Layer) -> Layer:
        """A layer with what this capture knows of it; of a layer that is many tensors, its steps."""
        tape, name = self._tape, layer.name
        calls, steps = tape.names.get(name, ()), tape.steps.get(name, ())
        if layer.consumer is None and name != "input" and (len(calls) > 1 or (not calls and len(steps) == 1)):
            return replace(layer, facts=f"{len(tape.find_steps(name))} steps")
        site, frame = self.resolve(layer)
        shape = "x".join(map(str, frame.layer_shape)) or "one number"
        channel = layer.channel_axis if layer.channel_axis is not None else frame.layer_channel
        axis = "" if channel is None else f", channels on axis {channel}"
        heads = layer.head_count or (frame.heads[1] if frame.heads else None)
        axis += "" if heads is None else f", {heads} heads"
        kind = site.port or self._tape.nodes[site.node].op.kind
        return replace(layer, facts=f"{shape}{axis}, {'edge' if site.consumer is not None else kind}")

    def names(self) -> list[str]:
        """Every name that a layer can be asked for by, in the order of the forward pass."""
        return [*self._indices(), "output"]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all of them."""
        at = {**self._indices(), "output": self._tape.output}
        return {name: self._tape.nodes[index].layer_shape for name, index in at.items()}

    def _indices(self) -> dict[str, int]:
        found = {(index, k > 0, name if len(calls) == 1 else f"{name}#{k}"): index
                 for name, calls in self._tape.names.items() for k, index in enumerate(calls)}  # fmt: skip
        return {name: index for (_, _, name), index in sorted(found.items(), key=lambda f: f[0][0])}

    def find(self, pattern: str) -> list[Layer]:
        """The layers whose name matches a pattern, in the order of the forward pass; each tensor once."""
        found: dict[int, Layer] = {}
        for name, calls in self._tape.names.items():
            for k, index in enumerate(calls):
                full = name if len(calls) == 1 else f"{name}#{k}"
                if fnmatch.fnmatchcase(full, pattern) or fnmatch.fnmatchcase(name, pattern):
                    found.setdefault(index, Layer(full))
        if not found:
            raise unknown_layer(pattern, self._tape)
        return [self.known(found[i]) for i in sorted(found)]

    def _several_inputs(self) -> QuestionError:
        names = [self._tape.nodes[i].name for i in self._tape.inputs]
        return QuestionError(
            f"the model has {len(names)} inputs", got="'input'", expected="one of " + ", ".join(map(repr, names)),
            hint=f"R[{names[0]!r}]; R.inputs is the whole input cut",
        )  # fmt: skip

    # ---- edges -----------------------------------------------------------------------------------------------

    def _edge_ends(self, layer: Layer) -> tuple[Node, Node]:
        assert layer.consumer is not None
        tape = self._tape
        if layer.consumer == SKIP:
            return self._skip_ends(layer.name)
        source, consumer = tape.find(layer.name), tape.find(layer.consumer)
        if source.index not in consumer.inputs:
            readers = ", ".join(repr(tape.nodes[c].name) for c in tape.consumers[source.index]) or "nobody"
            raise QuestionError(
                "there is no such edge", got=str(layer), expected=f"a consumer of {layer.name!r}: {readers}"
            )
        return source, consumer

    def _skip_ends(self, name: str) -> tuple[Node, Node]:
        tape, node = self._tape, self._tape.find(name)
        while node.op.kind != "add" and len(node.inputs) == 1:
            if isinstance(node.op, Linear):
                break
            node = tape.nodes[node.inputs[0]]
        plain = [j for j in node.inputs if j == self._received(name)]
        plain = plain or [j for j in node.inputs if not self.network.rules.open[j]]
        adds = node.op.kind == "add" and len(node.inputs) > 1
        if not adds or len(plain) != 1:
            raise QuestionError(
                f"layer {name!r} has no single skip connection",
                got=f"{len(plain)} plain terms" if adds else "no addition",
                expected="a block that ends in an addition with exactly one plain term",
                hint="R.edge(source, consumer) names any edge",
            )  # fmt: skip
        return tape.nodes[plain[0]], node

    def _received(self, name: str) -> int | None:
        """What the module of this name receives; None if the name is no module's."""
        try:
            return self._tape.find(f"{name}.input").index
        except QuestionError:
            return None

    def _along_edges(self, layer: Layer) -> tuple[Site, Frame]:
        """What a graph layer sums over neighbours as a site, with the edge of every row."""
        tape, name = self._tape, layer.name
        if self.attention(layer) is not None:
            raise QuestionError(
                "edges of attention are asked alone", got=f"{name}.edges", expected="R(attn.edges), or a stack",
                hint=f"R(R[{name!r}].v.position((head, key)), ...) has the walks from a key by its value",
            )  # fmt: skip
        found = find_edge_steps(tape, name)
        if len(found) != 1:
            steps = ", ".join(repr(tape.nodes[step.sum].name) for step in found)
            raise QuestionError(
                f"layer {name!r} has {'several sums' if found else 'no sum'} over neighbours", got=f"{name!r}.edges",
                expected=f"one of {steps}" if found else
                "a layer that sums over the neighbours of every node, or attention with a softmax times values",
                hint="R.layers lists kind 'propagate'; R['NAME'].edges works on these, too",
            )  # fmt: skip
        node = tape.nodes[found[0].rows]
        numbers, count = self._edge_numbers(found[0])
        return Site(node.index), replace(self.frame(node, f"{name}.edges"), edges=numbers, edge_count=count)

    def _edge_numbers(self, step: EdgeStep) -> tuple[Tensor, int]:
        graphs = self._tape.graphs
        if graphs is None:  # the model has its graph in itself: the edges are as it lists them
            count = len(step.targets)
            return torch.arange(count, device=step.targets.device), count
        return number_among(self._among_all_nodes(step, graphs), list(graphs.edges.values()))

    def _among_all_nodes(self, step: EdgeStep, graphs: Graphs) -> EdgeStep:
        """A sum over neighbours by the numbers that nodes have in the call, also behind a pooling that chose some."""
        count = None if graphs.plain is None else graphs.nodes[""]
        found = None if count in (None, self._tape.nodes[step.sum].shape[0]) else row_nodes(self._tape)
        if found is None:
            return step
        nodes, sources = found.rows.get(step.sum), found.rows.get(step.rows)
        if nodes is None:
            raise QuestionError(
                "this layer does not sum along the edges of the graph", got="nodes that are not known",
                where=f"layer {self._tape.nodes[step.sum].name!r}", expected=f"some of the {found.count} nodes",
            )  # fmt: skip
        return step._replace(targets=nodes[step.targets], sources=sources)

    # ---- drains ----------------------------------------------------------------------------------------------

    def drains(self, above: int = -1) -> list[Layer]:
        """The biases, offsets and sinks that receive relevance, of the nodes after ``above``."""
        return [Layer(drain_name(self._tape.nodes[i], port)) for i, port in self._reached_drains() if i > above]

    def _reached_drains(self) -> list[tuple[int, str]]:
        """The drains that something flows into. A column without a sum has a sink also where no message arrives."""
        return [
            spot for spot, message in sorted(self._base.drains.items(), key=lambda item: item[0]) if bool(message.any())
        ]

    def biases(self) -> list[Layer]:
        """The biases that receive relevance."""
        return [Layer(drain_name(self._tape.nodes[i], port)) for i, port in sorted(self._base.drains) if port == "bias"]

    def _drain(self, name: str) -> tuple[Site, Frame] | None:
        stem, _, call = name.partition("#")
        for port in PORTS:
            suffix = f".{port}"
            if name in self._tape.names or not (stem.endswith(suffix) or name.endswith(suffix)):
                continue
            base = name.removesuffix(suffix) if name.endswith(suffix) else stem.removesuffix(suffix) + f"#{call}"
            node = self._tape.find(base)
            if port == "bias" and port not in self.network.rules.drains(node.index):
                node = self._inner_bias(base, node)
            if (node.index, port) not in self._base.drains and port not in self.network.rules.drains(node.index):
                raise QuestionError(
                    f"layer {base!r} has no {port} of its own", got=repr(name),
                    hint="R.biases and R.inputs list what there is; a fused step has one bias, at its last tensor",
                )  # fmt: skip
            site = Site(node.index, port=port)
            return site, frame_at(self.network, site, name)
        return None

    def _inner_bias(self, name: str, node: Node) -> Node:
        """The node with the only bias inside a module call, such as that of a recurrent cell; else the node itself."""
        earlier = [i for i in self._tape.names.get(name.partition("#")[0], ()) if i < node.index]
        begin = max(earlier, default=-1)
        inside = [i for i, port in self._base.drains if port == "bias" and begin < i <= node.index
                  and self._tape.nodes[i].module == node.module]  # fmt: skip
        return self._tape.nodes[inside[0]] if len(inside) == 1 else node

    # ---- cuts ------------------------------------------------------------------------------------------------

    def inputs(self) -> Cut:
        """The whole input cut."""
        parts = [Layer(n.name) for n in self._tape.sources if n.index in self._base.arrivals]
        return Cut("inputs", (*parts, *self.drains()))

    def cut(self, layer: Layer) -> Cut:
        """The cut through a layer, with its bypass."""
        site, _ = self.resolve(layer)
        if site.port or site.consumer is not None:
            raise QuestionError(
                "a cut goes through a tensor", got=repr(layer), expected="a layer, not an edge or a bias"
            )
        return Cut(str(layer), (layer, *self.bypass(site.node)))

    def bypass(self, here: int) -> list[Layer]:
        """What every walk that avoids a node passes instead, at its height."""
        tape, live = self._tape, self._base.arrivals
        parts: list[Layer] = []
        for node in tape.nodes:
            if node.index == here or node.index not in live:
                continue
            if node.index > here:
                if isinstance(node.op, Source):
                    parts.append(Layer(node.name))
                continue
            readers = [c for c in tape.consumers[node.index] if c in live and self._feeds(node.index, c)]
            later = [c for c in readers if c > here]
            if later and len(later) == len(readers):
                parts.append(Layer(node.name))
            else:
                parts += [Layer(node.name, consumer=tape.nodes[c].name) for c in later]
        return parts + self.drains(here)

    def _feeds(self, i: int, consumer: int) -> bool:
        node = self._tape.nodes[consumer]
        return any(j == i and self.network.rules.coefficient(consumer, p) != 0 for p, j in enumerate(node.inputs))

    def cut_flags(self) -> dict[int, bool]:
        """For every tensor that relevance reaches: whether it is a cut by itself.

        It is one if no walk begins after it, and no walk passes it by.
        """
        late = [n.index for n in self._tape.sources if n.index in self._base.arrivals]
        begin = max([*late, *(i for i, _ in self._reached_drains())], default=-1)
        return {i: begin <= i and not bypassed for i, bypassed in self.bypassed().items()}

    def bypassed(self) -> dict[int, bool]:
        """For every tensor that relevance reaches: whether some tensor before it is read after it."""
        tape, live = self._tape, self._base.arrivals
        farthest, flags = -1, {}
        for node in tape.nodes:
            if node.index not in live:
                continue
            flags[node.index] = farthest > node.index
            readers = [c for c in tape.consumers[node.index] if c in live and self._feeds(node.index, c)]
            farthest = max(farthest, *readers, -1)
        return flags


def edge_shape(places: Places, partitions: Sequence[Partition]) -> tuple[int, ...] | None:
    """The axes of edges of attention, which have one shape in a stack; None for stacks of anything else."""
    if any(places.attention(partition.layer) is None for partition in partitions):
        return None
    shapes = {str(p): Blocks.of(places.frame_of(p.layer), p).shape for p in partitions}
    if len(set(shapes.values())) > 1:
        got = ", ".join(f"{text} {shape}" for text, shape in shapes.items())
        raise QuestionError(
            "edges of different shapes do not stack", got=got,
            expected="attention steps with as many heads, queries and keys", hint="one R(attn.edges) for each of them",
        )  # fmt: skip
    return next(iter(shapes.values()))

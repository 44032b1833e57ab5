"""Patching: what the network itself computes when all but a circuit, or a single node, is taken from another run."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nrm.capture import ResidualStream, Tape, find_stream, plain_execution
from nrm.devices import home_of
from nrm.errors import NrmError, QuestionError
from nrm.evaluate.intervention import output_weights
from nrm.evaluate.patched import CircuitCurve, Patched, PatchedNodes
from nrm.evaluate.streams import CircuitRun, Outside, TapeRun
from nrm.measure import (
    Circuit,
    CircuitFinder,
    CircuitPart,
    DirectEdges,
    Loop,
    Measure,
    node_name,
    read_options,
)
from nrm.memory import fitting
from nrm.questions import CONSTANT, Site, StreamEnd, at_one_site, frame_at, masks_of
from nrm.search import read_count
from nrm.tasks import Pairs

OUTSIDE = ("reference", "zero", "mean")
DIRECTIONS = ("noise", "denoise")


def patch(
    model: nn.Module | Measure, circuit: Any, pairs: Pairs | None = None, *, outside: str = "reference",
    data: Pairs | None = None, batch_size: int = 16, **options: Any,
) -> Any:  # fmt: skip
    """What the network computes with a circuit alone: everything outside is taken from elsewhere.

    Every reader of the residual stream gets an input of its own: what writers with an edge to it compute in the patched
    run, and of all others what they compute outside. The network is run again from its tape, norms, attention and
    maxima anew; the model itself is not touched.

    Args:
        model: a contrast (``nrm.measure(..., against=...)``), or a model, which is measured on ``pairs``.
        circuit: a :class:`nrm.Circuit`, the circuit of a task, or several of them, which are run together and give a
            :class:`CircuitCurve` over their sizes.
        pairs: pairs of inputs with answers, as :func:`nrm.tasks.read_pairs` reads them.
        outside: ``"reference"``: the corrupted run; ``"zero"``: writers add nothing; ``"mean"``: the mean of what each
            writer adds for ``data``, at every position where all inputs have one length, over positions otherwise.
        data: pairs whose clean inputs the mean is of; those that are patched if it is not given.
        batch_size: pairs that are run together.
        options: those of :func:`nrm.measure`.

    >>> import nrm
    >>> model, pairs = nrm.tasks.induction(12)
    >>> found = nrm.evaluate.patch(model, nrm.circuit(model, pairs[:6], top=0.3, draws=0), pairs[6:])
    >>> found.size, round(found.f, 2), round(found.mass, 2)
    (24, 1.02, 0.98)
    """
    try:
        _refuse_word("outside", outside, OUTSIDE)
        several = isinstance(circuit, list | tuple)
        circuits = [_circuit_of(c) for c in (circuit if several else [circuit])]
        if not circuits:
            raise QuestionError("no circuit is patched", got="an empty list", expected="a circuit, or several")
        inputs = PatchInputs(model, pairs, batch_size, options)
        means = _means(inputs if data is None else PatchInputs(inputs.model, data, batch_size, options), outside)
        with plain_execution(), torch.no_grad():
            parts = [_patched(part, circuits, outside, means) for part in inputs.parts()]
        found = list[Patched]()
        for k, c in enumerate(circuits):
            values, clean, corrupted, masses = (torch.cat(some) for some in zip(*(p[k] for p in parts), strict=True))
            found.append(Patched(values, clean, corrupted, masses, len(c), outside))
        return CircuitCurve.of(found, circuits[0].possible) if several else found[0]
    except NrmError as error:
        raise error.at("nrm.evaluate.patch") from None


def patch_nodes(
    model: nn.Module | Measure, pairs: Pairs | None = None, *, nodes: str | Sequence[str] | None = None,
    direction: str = "noise", batch_size: int = 16, **options: Any,
) -> PatchedNodes:  # fmt: skip
    """What single nodes do: each is taken from the other run, and everything above it is computed anew.

    Args:
        model: a contrast, or a model, which is measured on ``pairs``.
        pairs: pairs of inputs with answers.
        nodes: names with ``*`` and ``?`` of attention heads, other branches and the embedding; None is all of them.
        direction: ``"noise"``: in the clean run, the node is as in the reference, and the effect is what is lost;
            ``"denoise"``: in the reference the node is as in the clean run, and the effect is what comes back.
        batch_size: pairs that are run together.
        options: those of :func:`nrm.measure`.

    >>> import nrm
    >>> found = nrm.evaluate.patch_nodes(*nrm.tasks.induction(6))
    >>> round(found["blocks.0.attn.head(3)"], 2)  # it tells every token what stood before it
    0.88
    """
    try:
        _refuse_word("direction", direction, DIRECTIONS)
        effects, shares, gaps, names = list[Tensor](), list[Tensor](), list[Tensor](), list[str]()
        with plain_execution(), torch.no_grad():
            for part in PatchInputs(model, pairs, batch_size, options).parts():
                edges = part.R.direct()
                chosen = _named_nodes(edges, nodes)
                ends = [edges.writers[n] for n in chosen]
                names = [node_name(end) for end in ends]
                effects.append(_node_effects(part, ends, direction).sum(1))
                shares.append(edges.in_units()[:, chosen].sum((0, 2)))
                gaps.append((part.clean - part.corrupted).sum())
        total = torch.stack(gaps).sum()
        effect, relevance = (torch.stack(some).sum(0) / total for some in (effects, shares))
        return PatchedNodes(tuple(names), effect, relevance, direction)
    except NrmError as error:
        raise error.at("nrm.evaluate.patch_nodes") from None


# ---- inputs ----------------------------------------------------------------------------------------------------------


class PatchedPart:
    """Some samples whose network is patched: their contrast, and its explained outputs in both runs."""

    def __init__(self, R: Measure) -> None:
        tape = R.inner.tape
        if tape.runs is None:
            raise QuestionError(
                "patching needs two runs", got="a measure of one run",
                expected="a contrast: nrm.measure(model, inputs, against=reference)",
                hint="nrm.evaluate.remove(R, ...) takes neurons away from one run",
            )  # fmt: skip
        stream = find_stream(tape)
        if stream is None:
            raise QuestionError(
                "there is no residual stream", got="a network in which no branch is added to what it read",
                expected="a transformer, or a network of residual blocks",
                hint="nrm.evaluate.remove(R, ..., value='reference') patches layers of any network",
            )  # fmt: skip
        self.R, self.stream = R, stream
        self.here, self.there = tape.runs
        self._weights = output_weights(R)
        self.clean, self.corrupted = (self.explained(run.nodes[run.output].value[None])[0] for run in tape.runs)

    def explained(self, outputs: Tensor) -> Tensor:
        """The explained outputs ``(K, samples)`` of outputs ``(K, *shape)``."""
        frame = self.R.inner.places.frame(self.here.nodes[self.here.output])
        rows = frame.to_samples(outputs * self._weights)
        summed = rows.reshape(*rows.shape[:2], -1).sum(2)
        return summed[:, self.R.inner.samples.start : self.R.inner.samples.stop]


class PatchInputs:
    """What is patched: one contrast, or those of all pairs of a task, batch by batch."""

    def __init__(self, model: Any, pairs: Any, batch_size: int, options: Mapping[str, Any]) -> None:
        if isinstance(model, Measure):
            if pairs is not None or options:
                raise QuestionError(
                    "a measure has its inputs already", got="pairs, or options of nrm.measure, beside a measure",
                    expected="a measure, or a model and pairs",
                )  # fmt: skip
        elif not isinstance(model, nn.Module):
            raise QuestionError(
                "neither a measure nor a model", got=type(model).__name__, expected="R, or a model and pairs of inputs"
            )
        elif not isinstance(pairs, Pairs) or not len(pairs):
            raise QuestionError(
                "a model is patched on pairs of inputs", got="none" if pairs is None else type(pairs).__name__,
                expected="nrm.tasks.Pairs with a pair at least",
                hint="nrm.tasks.read_pairs(file, tokenizer) reads them",
            )  # fmt: skip
        read_options(dict(options))
        self.model, self._pairs, self._options = model, pairs, dict(options)
        self._size = read_count(batch_size, "pairs", "batch_size")

    def parts(self) -> Iterator[PatchedPart]:
        """The contrasts, one after the other."""
        yield from map(PatchedPart, self._measures())

    def _measures(self) -> Iterator[Measure]:
        if isinstance(self.model, Measure):
            self.model.inner.origin.check_fresh()
            yield self.model
            return
        device = home_of(self.model)
        loop = Loop()
        for some in self._pairs.by_length(self._size):
            batch = some.to(device)
            yield loop.measure(self.model, batch.clean, against=batch.corrupted, output=batch.odds, **self._options)


def _circuit_of(circuit: Any) -> Circuit:
    found = getattr(circuit, "circuit", circuit)
    if not isinstance(found, Circuit):
        raise QuestionError(
            "this is no circuit", got=type(circuit).__name__, expected="R.circuit(...), or nrm.circuit(...)"
        )
    if not len(found):
        raise QuestionError("the circuit is empty", got="no edge", expected="at least one edge from below to above")
    return found


def _refuse_word(option: str, word: Any, words: Sequence[str]) -> None:
    if word not in words:
        raise QuestionError(f"unknown {option}={word!r}", expected=" or ".join(map(repr, words)))


# ---- circuits --------------------------------------------------------------------------------------------------------


def patched_shares(R: Measure, circuits: Sequence[Circuit]) -> list[float]:
    """How much of the mean difference of a contrast comes back with each of some circuits; nothing is predicted."""
    part = PatchedPart(R)
    with plain_execution():
        values = torch.cat(list(_runs(part, circuits, Outside(part.there))))
    gap = (part.clean - part.corrupted).sum()
    return [float((value - part.corrupted).sum() / gap) for value in values]


def _runs(part: PatchedPart, circuits: Sequence[Circuit], outside: Outside) -> Iterator[Tensor]:
    """The explained outputs of circuits of the same edges, ``(circuits, samples)`` in pieces that fit into memory."""
    run = CircuitRun(part.R.inner, part.stream, circuits[0].writers, circuits[0].readers, outside)
    pieces = torch.split(torch.stack([c.inside for c in circuits]), fitting(part.R.inner.memory, run.nbytes))
    for piece in part.R.inner.progress("circuits")(iter(pieces), len(pieces)):
        yield part.explained(run.run(piece))


def _patched(
    part: PatchedPart, circuits: Sequence[Circuit], outside: str, means: Mapping[str, Tensor]
) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Of every circuit, by sample: the value, those with everything and with nothing inside, and the mass."""
    edges = part.R.direct(positions=circuits[0].inside.ndim > 2)
    known = CircuitPart(lambda: part.R.inner, edges)
    finder = CircuitFinder([known])
    inside = torch.stack([finder.given(c) for c in circuits])
    run = CircuitRun(part.R.inner, part.stream, edges.writers, edges.readers, _outside(part, outside, means))
    corrupted = part.corrupted
    if outside != "reference":
        corrupted = part.explained(run.run(torch.zeros_like(inside[:1])))[0]
    pieces = torch.split(inside, fitting(part.R.inner.memory, run.nbytes))
    shown = part.R.inner.progress("circuits")(iter(pieces), len(pieces))
    values = torch.cat([part.explained(run.run(piece)) for piece in shown])
    masses = [known.masses(marks) for marks in inside]
    return [(value, part.clean, corrupted, mass) for value, mass in zip(values, masses, strict=True)]


def _outside(part: PatchedPart, outside: str, means: Mapping[str, Tensor]) -> Outside:
    if outside == "reference":
        return Outside(part.there)
    values = {}
    for i, name in _written(part.here, part.stream):
        like = part.here.nodes[i].value[None]
        values[i] = torch.zeros_like(like) if outside == "zero" else _laid_out(part, i, means[name]).expand_as(like)
    return Outside(part.here, values)


def _written(tape: Tape, stream: ResidualStream) -> list[tuple[int, str]]:
    """The tensors that writers write, with the names of their places along the stream."""
    found = [(stream.crossings[0], "0")]
    for k, segment in enumerate(stream.segments):
        tensors = [b.term if b.heads is None else b.heads for b in segment.branches]
        found += [(i, f"{k + 1}.{n}") for n, i in enumerate(tensors)]
    return found


def _means(inputs: PatchInputs, outside: str) -> dict[str, Tensor]:
    """The mean over samples of every tensor that writers write, in the shape of a layer.

    Along axes in which inputs differ, as texts do in their length, it is the mean over positions as well.
    """
    sums: dict[str, list[tuple[Tensor, int]]] = {}
    for part in inputs.parts() if outside == "mean" else ():
        for i, name in _written(part.here, part.stream):
            rows = frame_at(part.R.inner.network, Site(i)).to_samples(part.here.nodes[i].value[None])[0]
            sums.setdefault(name, []).append((rows.sum(0), len(rows)))
    return {name: _mean([total for total, _ in some], [n for _, n in some]) for name, some in sums.items()}


def _mean(sums: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    uneven = tuple(a for a in range(sums[0].ndim) if len({total.shape[a] for total in sums}) > 1)
    level = [total.mean(uneven, keepdim=True) if uneven else total for total in sums]
    return torch.stack(level).sum(0) / sum(counts)


def _laid_out(part: PatchedPart, i: int, mean: Tensor) -> Tensor:
    """A mean as a tensor of the network, ``(1, *shape)`` or what broadcasts to it."""
    frame = frame_at(part.R.inner.network, Site(i))
    if mean.ndim != len(frame.layer_shape) or any(
        n not in (1, m) for n, m in zip(mean.shape, frame.layer_shape, strict=True)
    ):
        raise QuestionError(
            "the data of the mean have another shape than the pairs", where=f"layer {frame.label!r}",
            got=str(tuple(mean.shape)), expected=str(tuple(frame.layer_shape)),
            hint="data= with inputs of the same length, or of several lengths",
        )  # fmt: skip
    return frame.from_samples(mean[None, None])


# ---- nodes -----------------------------------------------------------------------------------------------------------


def _named_nodes(edges: DirectEdges, wanted: str | Sequence[str] | None) -> list[int]:
    """The numbers of the writers that are nodes of these names."""
    found = [n for n, w in enumerate(edges.writers) if w.kind != CONSTANT]
    if wanted is None:
        return found
    chosen = set[int]()
    for pattern in [wanted] if isinstance(wanted, str) else wanted:
        named = {n for n in found if fnmatch.fnmatchcase(node_name(edges.writers[n]), pattern)}
        if not named:
            raise QuestionError(
                "no node of the stream has this name", got=repr(pattern),
                expected=f"such as {node_name(edges.writers[found[-1]])!r}", hint="* and ? stand for letters",
            )  # fmt: skip
        chosen |= named
    return sorted(chosen)


def _node_effects(part: PatchedPart, ends: Sequence[StreamEnd], direction: str) -> Tensor:
    """What every node loses the clean run, or brings back in the reference: ``(nodes, samples)``."""
    into, other = (part.here, part.there) if direction == "noise" else (part.there, part.here)
    rerun, found = TapeRun(into), list[Tensor]()
    groups = [[ends[n] for n in rows] for rows in at_one_site(ends)]
    for some in part.R.inner.progress("nodes")(iter(groups), len(groups)):
        at, last = some[0].site.node, part.here.output
        own, theirs = into.nodes[at].value[None], other.nodes[at].value[None]
        widest = max(node.shape.numel() for node in into.nodes[at : last + 1]) * own.element_size()
        for masks in torch.split(masks_of(part.R.inner.network, some), fitting(part.R.inner.memory, widest)):
            (output,) = rerun({at: torch.where(masks, theirs, own)}, [last])
            found.append(part.explained(output))
    values = torch.cat(found)
    return part.clean - values if direction == "noise" else values - part.corrupted


__all__ = ["patch", "patch_nodes"]

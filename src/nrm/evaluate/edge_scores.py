"""Scores of direct edges by the methods that find circuits: gradients of several kinds, contrasts, and what is simple.

All score the same edges, and all have circuits chosen from their scores in the same way.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nrm.capture import plain_execution
from nrm.devices import home_of
from nrm.errors import NrmError, QuestionError
from nrm.evaluate.backward import GIM, GradientMethod, RelP, TrueGradient
from nrm.evaluate.gradients import StreamGradients, Written
from nrm.evaluate.patched import SIZES
from nrm.evaluate.patching import PatchedPart, PatchInputs
from nrm.evaluate.streams import TapeRun
from nrm.largest import largest
from nrm.measure import Circuit, DirectEdges, LivingEdges, Measure, measure, node_name, possible_edges
from nrm.questions import Site, StreamEnd, find_readers, find_writers, frame_at
from nrm.search import read_count
from nrm.tables import SAMPLE, Results, Tabled
from nrm.tasks import PairBatch, Pairs

GRADIENTS: dict[str, GradientMethod] = {
    "gradient x activation": GradientMethod(TrueGradient, activation=True),
    "eap": GradientMethod(TrueGradient),
    "eap-ig": GradientMethod(TrueGradient, steps=5),
    "relp": GradientMethod(RelP),
    "gim": GradientMethod(GIM),
}
"""The methods that multiply gradients with what writers write."""

Ends = tuple[StreamEnd, ...]
RANDOM, DIFFERENCE, CLEAN, CONTRAST = "random", "activation difference", "clean run", "contrast"
EDGE_METHODS = (RANDOM, DIFFERENCE, *GRADIENTS, CLEAN, CONTRAST)
"""What :func:`edge_scores` knows."""


@dataclass(frozen=True, eq=False)
class EdgeScores(Tabled):
    """The score of every direct edge by one method, for every sample: ``samples`` is ``(samples, writers, readers)``.

    ``values`` are their means. Those of a contrast, and of methods that approximate one, are in units of the output.
    ``value`` is the explained difference of every sample.
    """

    method: str
    samples: Tensor
    writers: tuple[StreamEnd, ...]
    readers: tuple[StreamEnd, ...]
    value: Tensor

    @property
    def values(self) -> Tensor:
        """The mean score of every edge, ``(writers, readers)``."""
        return self.samples.mean(0)

    def __len__(self) -> int:
        """How many edges there are."""
        return int(possible_edges(self.writers, self.readers).sum())

    @property
    def nodes(self) -> dict[str, float]:
        """The score of every node: those of the edges that leave it, added up."""
        sums = self.values.sum(1).tolist()
        return {node_name(w): one for w, one in zip(self.writers, sums, strict=True) if w.kind != "constant"}

    def circuit(self, top: float, signed: bool = False) -> Circuit:
        """The circuit of the edges with the largest scores: a number, or a share of all. Its mass is not known.

        Edges are ranked by absolute scores, or ``signed``, those first that argue most for the explained difference.
        Those on no way through the circuit are left out, and further ones take their places, as in ``R.circuit``.
        """
        if isinstance(top, bool) or not (top >= 1 if isinstance(top, int) else 0 < top <= 1):
            raise QuestionError(
                "so many edges cannot be chosen", got=f"top={top!r}",
                expected="a whole number from 1, or a share in (0, 1]",
            )  # fmt: skip
        return self._chosen(self._living(), top, self._keys(signed))

    def circuits(self, sizes: Sequence[float] = SIZES, signed: bool = False) -> list[Circuit]:
        """Circuits of several sizes: what :func:`nrm.evaluate.patch` makes a curve of."""
        living, keys = self._living(), self._keys(signed)
        return [self._chosen(living, size, keys) for size in sizes]

    def _keys(self, signed: bool) -> Tensor:
        return self.values * self.value.sum().sign() if signed else self.values.abs()

    def _living(self) -> LivingEdges:
        exists = possible_edges(self.writers, self.readers).to(self.samples.device)
        return LivingEdges(self.writers, self.readers, exists, plain=False)

    def _chosen(self, living: LivingEdges, top: float, keys: Tensor) -> Circuit:
        inside = living.best(top if isinstance(top, int) else max(1, round(top * len(self))), keys)
        return Circuit(self.writers, self.readers, inside, self.values * inside)

    def table(self) -> Results:
        """The scores with the names of writers and readers."""
        names = {"writer": tuple(map(str, self.writers)), "reader": tuple(map(str, self.readers))}
        return Results({"score": self.samples}, {"score": (SAMPLE, "writer", "reader")}, labels=names)

    def __repr__(self) -> str:
        lines = [f"{self.method}: scores of {len(self)} direct edges, mean of {len(self.samples)} samples"]
        table, columns = self.values, len(self.readers)
        for at in largest(table.abs().flatten(), min(8, len(self))).tolist():
            ends = f"{self.writers[at // columns]} -> {self.readers[at % columns]}"
            lines.append(f"  {float(table.flatten()[at]):8.4f}  {ends}")
        return "\n".join(lines)


def edge_scores(
    model: nn.Module | Measure, pairs: Pairs | None = None, method: str = CONTRAST, *, seed: int = 0,
    batch_size: int = 16, **options: Any,
) -> EdgeScores:  # fmt: skip
    """The scores of all direct edges by a method that finds circuits; each as its paper has it, on our edges.

    Written for a writer w and a reader r, with what w writes to the residual stream in the clean run and in the
    reference, and g the gradient of the explained output by what r reads:

    * ``"random"``: numbers drawn by ``seed``;
    * ``"activation difference"``: the length of the difference of what w writes, the same for all of its readers;
    * ``"gradient x activation"``: what w writes in the clean run, times g;
    * ``"eap"``: edge attribution patching, the difference of what w writes, times g of the clean run;
    * ``"eap-ig"``: the same with g averaged over 5 inputs from the reference towards the clean run;
    * ``"relp"``: relevance patching, ``"gim"``: gradient interaction modifications, with their gradients;
    * ``"clean run"``: the measure of the clean run alone, under the rules of transformers;
    * ``"contrast"``: ``R.direct()`` of the contrast.

    Args:
        model: a model, which is measured on ``pairs``, or a contrast.
        pairs: pairs of inputs with answers, as :func:`nrm.tasks.read_pairs` reads them.
        method: one of these names.
        seed: of ``"random"``.
        batch_size: pairs that are run together.
        options: those of :func:`nrm.measure`.

    >>> import nrm
    >>> found = nrm.evaluate.edge_scores(*nrm.tasks.induction(6), method="eap")
    >>> len(found), len(found.circuit(top=8))
    (81, 8)
    """
    try:
        if method not in EDGE_METHODS:
            near = difflib.get_close_matches(str(method).lower(), EDGE_METHODS, n=1)
            raise QuestionError(
                f"unknown method {method!r}", expected=", ".join(EDGE_METHODS), hint=repr(near[0]) if near else None
            )
        read_count(batch_size, "pairs", "batch_size")
        if method == CLEAN and isinstance(model, Measure):
            raise QuestionError(
                "the measure of the clean run alone needs the model", got="a contrast",
                expected="a model and pairs: nrm.evaluate.edge_scores(model, pairs, 'clean run')",
                hint="R.direct() of a plain measure has these edges",
            )  # fmt: skip
        inputs = PatchInputs(model, pairs, batch_size, options)
        found = list[EdgeScores]()
        with plain_execution():
            for n, part in enumerate(inputs.parts()):
                if method == CLEAN:
                    assert pairs is not None  # or there would be a measure
                    plain = _clean_run(inputs.model, pairs.by_length(batch_size)[n], options)
                    found.append(_of_clean_run(part, plain.direct()))
                else:
                    found.append(_scored(part, method, seed))
        samples, value = torch.cat([one.samples for one in found]), torch.cat([one.value for one in found])
        if pairs is not None:  # in the order of the pairs, not of their lengths
            order = torch.tensor([n for batch in pairs.by_length(batch_size) for n in batch.rows]).argsort()
            samples, value = samples[order.to(samples.device)], value[order.to(value.device)]
        return replace(found[0], samples=samples, value=value)
    except NrmError as error:
        raise error.at("nrm.evaluate.edge_scores") from None


def _scored(part: PatchedPart, method: str, seed: int) -> EdgeScores:
    """The scores of the samples of one contrast, in units of the output where a method has such."""
    if method == CONTRAST:
        edges = part.R.direct()
        return _scores(part, method, edges.in_units(), edges.writers, edges.readers)
    writers, readers = _ends(part)
    batch, exists = part.R.inner.tape.batch, possible_edges(writers, readers)
    if method == RANDOM:
        random = torch.rand(exists.shape, generator=torch.Generator().manual_seed(seed)) * exists
        table = random.to(part.clean).expand(batch, *exists.shape)
    elif method == DIFFERENCE:
        table = _lengths(part, writers)[:, :, None] * exists.to(part.clean)
    else:
        table = StreamGradients(part, writers, readers, GRADIENTS[method]).scores()
    return _scores(part, method, part.R.inner.mine(table), writers, readers)


def _ends(part: PatchedPart) -> tuple[Ends, Ends]:
    """The writers and readers of a contrast."""
    inner = part.R.inner
    inner.origin.check_fresh()
    found = (find(inner.network, part.stream, inner.base) for find in (find_writers, find_readers))
    writers, readers = map(tuple, found)
    return writers, readers


def _scores(part: PatchedPart, method: str, table: Tensor, writers: Ends, readers: Ends) -> EdgeScores:
    return EdgeScores(method, table.clone(), writers, readers, part.clean - part.corrupted)


def _lengths(part: PatchedPart, writers: Sequence[StreamEnd]) -> Tensor:
    """The length of the difference of what every writer writes, ``(batch, writers)``."""
    rows = Written(part, TapeRun(part.here), writers, clean=False).rows()
    lengths = []
    for k, some in sorted(rows.items()):
        frame = frame_at(part.R.inner.network, Site(part.stream.crossings[k]))
        lengths.append(frame.to_samples(some.expand(len(some), *frame.shape)).flatten(2).norm(dim=2).T)
    return torch.cat(lengths, 1)


def _clean_run(model: Any, batch: PairBatch, options: Mapping[str, Any]) -> Measure:
    """The measure of clean inputs alone, under the rules of transformers."""
    some = batch.to(home_of(model))
    return measure(model, some.clean, output=some.odds, **{"rules": "transformer", **options})


def _of_clean_run(part: PatchedPart, edges: DirectEdges) -> EdgeScores:
    """A plain measure on the edges of a contrast; those of biases, which have no difference, are left out."""
    writers, readers = _ends(part)
    units = edges.in_units()
    for axis, (mine, theirs) in enumerate(((writers, edges.writers), (readers, edges.readers)), 1):
        units = _laid_out(units, axis, [str(end) for end in mine], [str(end) for end in theirs])
    return _scores(part, CLEAN, units, writers, readers)


def _laid_out(table: Tensor, axis: int, mine: list[str], theirs: list[str]) -> Tensor:
    """A table along other names of an axis; 0 where it has none."""
    known = [n for n, name in enumerate(mine) if name in set(theirs)]
    chosen = table.index_select(axis, torch.tensor([theirs.index(mine[n]) for n in known], device=table.device))
    shape = [len(mine) if a == axis else n for a, n in enumerate(table.shape)]
    return table.new_zeros(shape).index_copy(axis, torch.tensor(known, device=table.device), chosen)


__all__ = ["EDGE_METHODS", "EdgeScores", "edge_scores"]

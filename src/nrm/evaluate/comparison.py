"""Methods judged by joint contributions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nrm.errors import NrmError, QuestionError
from nrm.evaluate.baselines import METHODS, scores as scores_of
from nrm.evaluate.intervention import contribution_and_occlusion
from nrm.evaluate.statistics import Correlation, TopSums
from nrm.measure import Measure
from nrm.memory import ALIVE, fitting
from nrm.questions import Argument, Blocks, Layer, Partition, axes_of, stops_for
from nrm.tables import SAMPLE, Results, Tabled, html_table

SHARE = 0.05
"""Of tables that are not kept, SC_k is known up to this share of all combinations."""
WHOLE = 2**20
"""Tables of up to so many combinations are ranked as a whole."""


@dataclass(frozen=True, eq=False, repr=False)
class Agreement:
    """How well one method's scores agree with the joint contributions, for every sample.

    ``area`` is the mean of SC_k over all k; None where not all combinations were ranked.
    """

    pearson: Tensor
    sc: Tensor
    area: Tensor | None

    def __repr__(self) -> str:
        area = "" if self.area is None else f", mean of SC_k {float(self.area.mean()):.4g}"
        return f"agreement in {len(self.pearson)} samples: pearson {float(self.pearson.mean()):.4f}{area}"


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Tabled):
    """Methods judged by joint contribution: ``comparison["nrm"].pearson``. ``k`` are those of all SC_k.

    ``value`` is the explained output of every sample; where it is not positive, relevance argues for a negative value.
    """

    methods: dict[str, Agreement]
    k: Tensor
    combinations: int
    value: Tensor

    def __getitem__(self, method: str) -> Agreement:
        return self.methods[method]

    def table(self) -> Results:
        """``"pearson"`` and ``"area"`` by method and sample, ``"sc"`` by method, sample and k."""
        found = list(self.methods.values())
        tensors = {"pearson": torch.stack([one.pearson for one in found])}
        areas = [one.area for one in found if one.area is not None]
        if len(areas) == len(found):
            tensors["area"] = torch.stack(areas)
        axes: dict[str, tuple[str, ...]] = dict.fromkeys(tensors, ("method", SAMPLE))
        if len(self.k):
            tensors["sc"], axes["sc"] = torch.stack([one.sc for one in found]), ("method", SAMPLE, "k")
        labels, numbers = {"method": tuple(self.methods)}, {"k": tuple(self.k.tolist())}
        return Results(tensors, axes, labels=labels, numbers=numbers)

    def _repr_html_(self) -> str:
        rows = [
            (name, f"{float(a.pearson.mean()):.4f}", f"{float(a.pearson.min()):.4f}",
             "" if a.area is None else f"{float(a.area.mean()):.4g}")
            for name, a in self.methods.items()
        ]  # fmt: skip
        return html_table(self._head(), ("method", "mean pearson", "lowest", "mean of SC_k"), rows)

    def _head(self) -> str:
        negative = int((self.value <= 0).sum())
        head = f"{self.combinations} combinations, {len(self.value)} samples"
        return head + (f", {negative} of them with an explained output <= 0" if negative else "")

    def __repr__(self) -> str:
        head = self._head()
        lines = [f"  {name:<12} pearson {float(a.pearson.mean()):.4f}" for name, a in self.methods.items()]
        return "\n".join([head, *lines])


def compare(
    R: Measure, *arguments: Argument, methods: Sequence[str] = METHODS,
    scores: Mapping[str, Tensor] | None = None, value: Any = "zero", k: Sequence[int] | Tensor | None = None,
    seed: int = 0,
) -> Comparison:  # fmt: skip
    """Judges methods, and any ``scores`` of your own, by the joint contributions of all combinations of blocks.

    Scores are tensors in the shape of ``R(*arguments)``, higher for more important combinations. Large tables are
    worked off part by part and never kept. ``k`` are the k of SC_k, by default some on a logarithmic scale; without any
    (``k=()``) nothing is ranked, which saves most of the time.

    >>> import nrm
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> R = nrm.measure(model, torch.rand(3, 4), rules="lrp-0")
    >>> found = nrm.evaluate.compare(R, R["1"].channels, R["3"].channels)
    >>> bool(found["nrm"].pearson.mean() > found["random"].pearson.mean())
    True
    """
    try:
        return _compare(R, arguments, methods, dict(scores or {}), value, k, seed)
    except NrmError as error:
        raise error.at("nrm.evaluate.compare") from None


def _compare(
    R: Measure, arguments: Sequence[Argument], methods: Sequence[str], own: dict[str, Tensor], value: Any, k: Any,
    seed: int,
) -> Comparison:  # fmt: skip
    stops = stops_for(arguments, R.resolve)
    axes = [n for stop in stops for n in axes_of(stop)]
    combinations = torch.Size(axes).numel()
    if combinations < 2:
        raise QuestionError(
            "there is nothing to compare", got=f"{combinations} combinations", hint="partitions such as a.channels"
        )
    shape = (len(R), *axes)
    for name, table in own.items():
        if name in methods or tuple(table.shape) != shape:
            raise QuestionError(
                f"the scores {name!r} cannot be judged", got="a name that is taken" if name in methods
                else f"shape {tuple(table.shape)}", expected=f"a name of their own, and shape {shape}",
            )  # fmt: skip
    keep = combinations if combinations <= WHOLE else max(WHOLE, int(SHARE * combinations))
    wanted = _logarithmic(keep) if k is None else torch.as_tensor(k, dtype=torch.long)
    if bool(((wanted < 1) | (wanted > keep)).any()):
        raise QuestionError("k is out of range", got=f"{wanted.min()} to {wanted.max()}", expected=f"1 to {keep}")
    totals = {name: (Correlation(), TopSums(keep)) for name in (*methods, *own)}
    ranks = wanted.numel() > 0
    parts = _parts(R, arguments, combinations)
    for number, (rows, part) in enumerate(R.inner.progress("parts")(iter(parts), len(parts))):
        C, lost = contribution_and_occlusion(R, *part, value=value, seed=seed)
        for name, (correlation, top) in totals.items():
            if name in own:
                S = own[name][(slice(None), *rows)]
            else:
                S = lost if name == "occlusion" else scores_of(R, *part, method=name, seed=seed + number)
            correlation.update(C, S)
            if ranks:
                top.update(C, S)
    found = {}
    for name, (correlation, top) in totals.items():
        if not ranks:
            found[name] = Agreement(correlation.value, C.new_empty(len(R), 0), None)
        elif keep == combinations:
            whole = top.curve()
            found[name] = Agreement(correlation.value, whole[:, wanted - 1], whole.mean(1))
        else:
            found[name] = Agreement(correlation.value, top.curve(wanted), None)
    return Comparison(found, wanted, combinations, R.value)


def _logarithmic(most: int) -> Tensor:
    return torch.unique(torch.logspace(0, math.log10(most), 60).round().long().clamp(1, most))  # type: ignore[no-any-return]


TablePiece = tuple[tuple[slice, ...], list[Argument]]


def _parts(R: Measure, arguments: Sequence[Argument], combinations: int) -> list[TablePiece]:
    """The question in pieces that fit into memory, cut along its first partition: where they lie, and the questions."""
    nbytes = combinations * R.inner.tape.batch * R.value.element_size()
    first = next((n for n, a in enumerate(arguments) if isinstance(a, Layer | Partition)), None)
    if ALIVE * nbytes <= R.inner.memory or first is None:
        return [((), list(arguments))]
    whole = arguments[first]
    whole = Partition(whole) if isinstance(whole, Layer) else whole
    assert isinstance(whole, Partition)
    shape = Blocks.of(R.resolve(whole.layer)[1], whole).shape
    size = fitting(R.inner.memory, -(-nbytes // shape[0]))
    before = sum(len(axes_of(stop)) for stop in stops_for(arguments[:first], R.resolve)) if first else 0
    found = []
    for begin in range(0, shape[0], size):
        rows = slice(begin, min(shape[0], begin + size))
        part = [*arguments[:first], whole[rows], *arguments[first + 1 :]]
        found.append(((*(slice(None),) * before, rows), part))
    return found

"""Scores of interactions: the measure, and what it is compared with."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nrm.capture import plain_execution
from nrm.errors import QuestionError
from nrm.evaluate.intervention import occlusion
from nrm.measure import Measure
from nrm.questions import Argument, Layer, Stop, axes_of, stops_for

METHODS = ("nrm", "lrp", "occlusion", "activation", "random")


def scores(R: Measure, *arguments: Argument, method: str = "nrm", value: Any = "zero", seed: int = 0) -> Tensor:
    """What a method says about every combination of blocks, in the shape of ``R(*arguments)``.

    * ``"nrm"``: the joint relevance times the explained output, so that sign and scale are those of a contribution;
    * ``"lrp"``: the sum of the layers' own relevances, times the explained output;
    * ``"activation"``: the sum of the activations of all neurons in the sets;
    * ``"occlusion"``: the loss of output without the sets (:func:`occlusion`; ``value`` replaces the removed);
    * ``"random"``: numbers without meaning, the same for the same ``seed``.
    """
    if method not in METHODS:
        near = difflib.get_close_matches(str(method), METHODS, n=1)
        raise QuestionError(
            f"unknown method {method!r}", where="nrm.evaluate.scores", expected=", ".join(map(repr, METHODS)),
            hint=f"method={near[0]!r}" if near else None,
        )  # fmt: skip
    if method == "nrm":
        return _scaled(R, R(*arguments))
    if method == "occlusion":
        return occlusion(R, *arguments, value=value, seed=seed)
    stops = stops_for(arguments, R.resolve)
    if method == "random":
        shape = (len(R), *(n for stop in stops for n in axes_of(stop)))
        drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return drawn.to(R.value)
    if method == "lrp":
        groups = {stop.site: [a for a in arguments if R.resolve(_layer(a))[0] == stop.site] for stop in stops}
        return _scaled(R, _outer_sum(stops, [R(*groups[stop.site]) for stop in stops]))
    with plain_execution():
        return _outer_sum(stops, [R.inner.mine(_activation(R, stop)) for stop in stops])


def _layer(argument: Any) -> Layer:
    layer: Layer = argument if isinstance(argument, Layer) else argument.layer
    return layer


def _scaled(R: Measure, shares: Tensor) -> Tensor:
    return shares * R.value.view(-1, *(1,) * (shares.ndim - 1))


def _activation(R: Measure, stop: Stop) -> Tensor:
    value, mask = R.inner.tape.here.nodes[stop.site.node].value[None], stop.mask()
    return stop.read(value if mask is None else value * mask)[0]


def _outer_sum(stops: Sequence[Stop], tables: Sequence[Tensor]) -> Tensor:
    """Tables ``(batch, *axes)`` of every stop, added in all combinations; axes in the order of the arguments."""
    owners = [sorted(a for a, b in zip(s.axes, s.blocks, strict=True) for _ in b.shape) for s in stops]
    everyone = sorted(itertools.chain(*owners))
    total: Any = 0.0
    for table, mine in zip(tables, owners, strict=True):
        sizes = iter(table.shape[1:])
        total = total + table.reshape(len(table), *(next(sizes) if a in mine else 1 for a in everyone))
    result: Tensor = total
    return result

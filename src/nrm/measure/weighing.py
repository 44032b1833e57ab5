"""How walks count: the weights of a question, as numbers at the sites of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from nrm.errors import QuestionError, warn
from nrm.measure.events import neurons
from nrm.measure.inner import Inner
from nrm.measure.layers import Cut
from nrm.questions import (
    Argument,
    Fixed,
    Layer,
    Partition,
    Question,
    Set,
    Shares,
    Site,
    additive_weights,
    cut_weights,
    no_text,
)


def weights_of(inner: Inner, question: Question) -> dict[Site, Tensor] | None:
    """The weights of a question, ``(1, *shape)`` by site; None if every walk counts as it is."""
    if question.weights is None:
        return None
    if isinstance(question.weights, Shares):
        return _shared(inner, question.weights)
    total: dict[Site, Tensor] = {}
    for key, values in question.weights:
        for site, weight in _weighted(inner, key, values):
            total[site] = total[site] + weight if site in total else weight
    return total


def _weighted(inner: Inner, key: Layer | Set, values: Fixed) -> list[tuple[Site, Tensor]]:
    """The weights of a layer or a set, by site."""
    numbers = values.tensor.to(inner.tape.nodes[inner.tape.output].value)
    if isinstance(key, Set) and numbers.ndim == 0:
        return [(site, mask * numbers) for site, mask in neurons(inner.places, key)]
    site, frame = inner.resolve(key if isinstance(key, Layer) else key.layer)
    weight = frame.from_samples(frame.fitted(numbers, "weight map", numbers.dtype))
    return [(site, weight if isinstance(key, Layer) else weight * frame.from_samples(frame.mask(key)))]


def _shared(inner: Inner, shares: Shares) -> dict[Site, Tensor]:
    """The share of every walk that falls to the neurons of some sets."""
    chosen: dict[Site, Tensor] = {}
    for site, mask in (spot for some in shares.sets for spot in neurons(inner.places, some)):
        chosen[site] = chosen[site] | mask if site in chosen else mask
    if shares.cuts is None:
        weights = additive_weights(inner.network, chosen)
        if not weights and any(bool(mask.any()) for mask in chosen.values()):
            _warn_of_levels(inner, shares.sets[0], next(iter(chosen)))
        return weights
    weights = cut_weights(inner.network, chosen, [[inner.resolve(part)[0] for part in cut] for cut in shares.cuts])
    _refuse_outside(inner, shares.sets, weights)
    return weights


def _warn_of_levels(inner: Inner, chosen: Set, site: Site) -> None:
    """A set may well have 0, but not for the reason that somebody who asks for it has in mind."""
    names = ", ".join(repr(inner.tape.nodes[i].name) for i in inner.tape.consumers[site.node])
    warn(f"{chosen} has additive relevance 0: of tensors on one level the last one counts, here {names}")


def _refuse_outside(inner: Inner, sets: Sequence[Set], weights: Mapping[Site, Tensor]) -> None:
    """A set outside all cuts would have 0, which nobody means."""
    inside = {*weights, *(Site(site.node, port=site.port) for site in weights)}
    for some in sets:
        if not any(site in inside for site, _ in neurons(inner.places, some)):
            raise QuestionError(
                "the set lies in none of the cuts", got=repr(some), expected="a set of a layer of layers=",
                hint="R.cut(layer) lists what a cut is made of",
            )  # fmt: skip


def read_additive(
    inner: Inner, parts: Sequence[Set | Layer | Partition], at: Argument | Sequence[Argument] | None,
    layers: Sequence[Cut | Layer | str] | None,
) -> Question:  # fmt: skip
    """The question of additive relevance as a user writes it."""
    if not parts:
        raise QuestionError("nothing was asked", hint="R.additive(a.channel(3), b.channel(5))")
    if len(parts) == 1 and isinstance(parts[0], Layer | Partition) and at is None:
        at = parts[0]
        parts = [(at if isinstance(at, Layer) else at.layer).all]
    for given in parts:
        no_text(given)
    sets = tuple(part for part in parts if isinstance(part, Set))
    if len(sets) < len(parts):
        raise QuestionError(
            "additive relevance is of sets, or of one partition alone", got=", ".join(map(repr, parts))[:120],
            hint="R.additive(S1, S2), R.additive(a.channels), R.additive(S1, S2, at=x)",
        )  # fmt: skip
    where: list[Any] = [] if at is None else list(at) if isinstance(at, list | tuple) else [at]
    shares = Shares(sets, None if layers is None else _cuts(inner, layers))
    return Question(Question.read(where, some=False).arguments, weights=shares)


def _cuts(inner: Inner, layers: Sequence[Cut | Layer | str]) -> tuple[tuple[Layer, ...], ...]:
    if isinstance(layers, str | Layer | Cut) or not layers:
        raise QuestionError(
            "layers are several cuts", got=repr(layers)[:120], hint="layers=[R.cut('conv1'), R.cut('conv2')]"
        )
    cuts = [one if isinstance(one, Cut) else inner.places.cut(Layer(one) if isinstance(one, str) else one)
            for one in layers]  # fmt: skip
    return tuple(tuple(cut) for cut in cuts)

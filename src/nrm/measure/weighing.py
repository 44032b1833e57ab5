"""Sums over walks with weights: additive relevance, expectations, and the table of what walks visit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nrm.capture import plain_execution
from nrm.errors import NrmWarning, QuestionError
from nrm.measure.asking import Asking
from nrm.measure.events import make_track, neurons
from nrm.measure.layers import Cut
from nrm.measure.question import Argument, read_question, refuse_text
from nrm.questions import (
    ATOMS,
    Formula,
    Layer,
    Partition,
    Set,
    Site,
    additive_weights,
    answer_tracked,
    cut_weights,
    plan_tracked,
)

Weight = float | Tensor


class Weighing(Asking):
    """The questions of a measure whose walks count more or less, or are told apart by what they visit."""

    def dividends(self, *events: Set | Formula) -> Tensor:
        """The relevance of all walks by what they visit, every combination of events by itself: ``(batch, 2, 2, ...)``.

        Every event, a set or ``nrm.visits(...)``, has an axis: entry 1 is visiting it, entry 0 avoiding it. This is the
        truth table of all formulas about these events, and adds up to 1. It also has the Harsanyi dividends (the
        Moebius transform) of the game whose players are the events and whose value is the relevance of all walks that
        avoid every event outside a coalition: that value is ``table.cumsum(1).cumsum(2)...``.

        >>> import nrm
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> R = nrm.measure(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(1, 4))
        >>> A, B = R.input[0], R["1"].channel([1, 2])
        >>> table = R.dividends(A, B)
        >>> bool(torch.isclose(table[0, 1, 0], R(nrm.visits(A) & ~nrm.visits(B))[0]))
        True
        """
        sets = [_visited(event) for event in events]
        if not sets or len(sets) > ATOMS:
            raise QuestionError(
                "dividends tell a few events apart", got=f"{len(sets)} events", expected=f"1 to {ATOMS} of them",
                hint="nrm.visits(S1, S2, ...) of several sets is one event",
            )  # fmt: skip
        one = self._meant([s for some in sets for s in some])
        if one is not None:
            return one.dividends(*events)
        self._origin.check_fresh()
        with plain_execution():
            self._be_loud()
            places = [[spot for chosen in some for spot in neurons(self._places, chosen)] for some in sets]
            many = 2 ** len(sets)
            track = make_track(self._kept, places, np.arange(many))
            plan = plan_tracked(track, [], answers=many, memory=self._memory, kept=True)
            table = self._mine(answer_tracked(self._answerer(), plan))
        return table.reshape(-1, *(2,) * len(sets)).permute(0, *range(len(sets), 0, -1))

    def expect(
        self, weights: Mapping[Layer | Set, Any], *arguments: Argument,
        given: Argument | Sequence[Argument] | None = None,
    ) -> Tensor:  # fmt: skip
        """The relevance of all walks asked for, each times the sum of the weights of the neurons it visits.

        ``weights`` has numbers, or tensors that broadcast to a layer from the right (with all axes: one per sample),
        for layers and for sets. ``arguments`` and ``given`` are as in ``R(...)``; without any, all walks count. Weights
        of 1 on one set give its relevance, weights of 1 on any cut the relevance of the arguments themselves.

        >>> import nrm
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> R = nrm.measure(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(1, 4))
        >>> a = R["1"]
        >>> bool(torch.isclose(R.expect({a.channel(3): 1.0}), R(a.channel(3))))
        True
        >>> R.expect({a.channel(3): 0.5, R.input: torch.rand(4)}, R.input).shape
        torch.Size([1, 4])
        """
        if not (weights and isinstance(weights, Mapping)):
            raise QuestionError("no weights", got=repr(weights)[:120], expected="{layer or set: number or tensor}")
        one = self._meant([key for key in weights if isinstance(key, Set)])
        if one is not None:
            return one.expect(weights, *arguments, given=given)
        total: dict[Site, Tensor] = {}
        for key, values in weights.items():
            for site, weight in self._weighted(key, values):
                total[site] = total[site] + weight if site in total else weight
        return self._expected(total, arguments, given)

    def additive(
        self, *parts: Set | Layer | Partition, at: Argument | Sequence[Argument] | None = None,
        layers: Sequence[Cut | Layer | str] | None = None,
    ) -> Tensor:  # fmt: skip
        """The additive relevance of neurons anywhere in the network: every walk is shared out evenly over its layers.

        Sets together are one set of neurons; it grows with every neuron that is added, and all neurons of the network
        have 1. A single layer or partition has an axis: each of its blocks by itself. ``at`` reads where the walks of
        the sets pass: ``at=R.input`` is the heat map. ``layers`` shares walks out over these cuts only (a layer stands
        for the cut through it).

        >>> import nrm
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> R = nrm.measure(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(1, 4))
        >>> a, x = R["1"], R.input
        >>> bool(torch.isclose(R.additive(a.channel(3)), R(a.channel(3)) / 3))  # a chain of three layers
        True
        >>> R.additive(a.channels).shape, R.additive(a.channel(3), x[0], at=x).shape
        (torch.Size([1, 8]), torch.Size([1, 4]))
        """
        if not parts:
            raise QuestionError("nothing was asked", hint="R.additive(a.channel(3), b.channel(5))")
        if len(parts) == 1 and isinstance(parts[0], Layer | Partition) and at is None:
            part = parts[0]
            whole = part if isinstance(part, Layer) else part.layer
            return self.additive(whole.all, at=part, layers=layers)
        for given in parts:
            refuse_text(given)
        sets = [part for part in parts if isinstance(part, Set)]
        if len(sets) < len(parts):
            raise QuestionError(
                "additive relevance is of sets, or of one partition alone", got=", ".join(map(repr, parts))[:120],
                hint="R.additive(S1, S2), R.additive(a.channels), R.additive(S1, S2, at=x)",
            )  # fmt: skip
        one = self._meant(sets)
        if one is not None:
            return one.additive(*parts, at=at, layers=layers)
        chosen: dict[Site, Tensor] = {}
        for site, mask in (spot for some in sets for spot in neurons(self._places, some)):
            chosen[site] = chosen[site] | mask if site in chosen else mask
        if layers is None:
            weights = additive_weights(self._network, chosen)
            if not weights and any(bool(mask.any()) for mask in chosen.values()):
                self._warn_of_levels(sets[0], next(iter(chosen)))
        else:
            weights = cut_weights(self._network, chosen, self._cuts(layers))
            self._refuse_outside(sets, weights)
        where: list[Any] = [] if at is None else list(at) if isinstance(at, list | tuple) else [at]
        return self._expected(weights, where, None)

    def _warn_of_levels(self, chosen: Set, site: Site) -> None:
        """A set may well have 0, but not for the reason that somebody who asks for it has in mind."""
        names = ", ".join(repr(self._tape.nodes[i].name) for i in self._tape.consumers[site.node])
        text = f"{chosen} has additive relevance 0: of tensors on one level the last one counts, here {names}"
        warnings.warn(text, NrmWarning, stacklevel=3)

    def _expected(
        self, weights: Mapping[Site, Tensor], arguments: Sequence[Argument],
        given: Argument | Sequence[Argument] | None,
    ) -> Tensor:  # fmt: skip
        asked = read_question(arguments, given, some=False)
        conditions = asked[len(arguments) :]
        one = self._meant(asked)
        if one is not None:
            return one._expected(weights, arguments, given)
        self._origin.check_fresh()
        with plain_execution():
            self._refuse_excluded(asked, conditions)
            self._be_loud()
            table = self._answer(asked, weights=weights)
            return self._mine(self._conditioned(table, conditions) if conditions else table)

    def _weighted(self, key: Any, values: Any) -> list[tuple[Site, Tensor]]:
        """The weights of a layer or a set, ``(1, *shape)`` by site."""
        if not isinstance(key, Layer | Set):
            name = f"{{R[{key!r}]: 1.0}}" if isinstance(key, str) else "{a.channel(3): 1.0}"
            raise QuestionError("weights are for layers and sets", got=repr(key)[:120], hint=name)
        layer = key if isinstance(key, Layer) else key.layer
        like = self._tape.nodes[self._tape.output].value
        try:
            numbers = torch.as_tensor(values, dtype=like.dtype, device=like.device).detach()
        except (TypeError, ValueError, RuntimeError):
            raise QuestionError("weights cannot be read as numbers", where=str(layer), got=repr(values)[:120]) from None
        if not bool(numbers.isfinite().all()):
            raise QuestionError("weights are finite", where=str(layer), got="nan or infinity")
        if isinstance(key, Set) and numbers.ndim == 0:
            return [(site, mask * numbers) for site, mask in neurons(self._places, key)]
        site, frame = self._places.resolve(layer)
        weight = frame.from_samples(frame.fitted(numbers, "weight map", like.dtype))
        return [(site, weight if isinstance(key, Layer) else weight * frame.from_samples(frame.mask(key)))]

    def _cuts(self, layers: Sequence[Cut | Layer | str]) -> list[list[Site]]:
        if isinstance(layers, str | Layer | Cut) or not layers:
            raise QuestionError(
                "layers are several cuts", got=repr(layers)[:120], hint="layers=[R.cut('conv1'), R.cut('conv2')]"
            )
        cuts = [one if isinstance(one, Cut) else self._places.cut(Layer(one) if isinstance(one, str) else one)
                for one in layers]  # fmt: skip
        return [[self._places.resolve(part)[0] for part in cut] for cut in cuts]

    def _refuse_outside(self, sets: Sequence[Set], weights: Mapping[Site, Tensor]) -> None:
        """A set outside all cuts would have 0, which nobody means."""
        inside = {*weights, *(Site(site.node, port=site.port) for site in weights)}
        for some in sets:
            if not any(site in inside for site, _ in neurons(self._places, some)):
                raise QuestionError(
                    "the set lies in none of the cuts", got=repr(some), expected="a set of a layer of layers=",
                    hint="R.cut(layer) lists what a cut is made of",
                )  # fmt: skip


def _visited(event: Set | Formula) -> tuple[Set, ...]:
    if isinstance(event, Set):
        return (event,)
    if getattr(event, "expression", [""])[0] == "visits":
        return event.sets
    raise QuestionError(
        "dividends are of sets", got=repr(event)[:120], expected="sets, or nrm.visits(...) of several",
        hint="R(formula) is the relevance of a formula",
    )  # fmt: skip

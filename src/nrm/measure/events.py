"""From arguments to tracks: formulas, and sets of several steps, as events at sites of the tape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.measure.places import Places
from nrm.questions import (
    ATOMS,
    AnswerNumbers,
    Formula,
    Kept,
    Set,
    Site,
    Stop,
    Track,
    frame_at,
    needs_track,
    spans_steps,
    steps_visited,
    stops_for,
)

Event = list[tuple[Site, Tensor]]
"""Where an event can happen, each with the mask ``(1, *shape)`` of its neurons."""
BESIDE = 4
"""So many sets beside the largest formula; they add no messages, only rows to the table of combinations."""


def neurons(places: Places, chosen: Set) -> Event:
    """A set as neurons of one tensor, or of several steps."""
    if not spans_steps(chosen):
        site, frame = places.resolve(chosen.layer)
        return [(site, frame.from_samples(frame.mask(chosen)))]
    nodes = places.steps(chosen.layer)
    found: Event = []
    for step, samples in steps_visited(chosen, len(nodes), places.batch).items():
        site = Site(nodes[step])
        frame = frame_at(places.network, site)
        own = torch.tensor(samples, device=frame.device).view(1, -1, *(1,) * len(frame.layer_shape))
        found.append((site, frame.from_samples(own)))
    return found


def read_track(
    kept: Kept, places: Places, asked: Sequence[Any], weights: Mapping[Site, Tensor] | None = None
) -> tuple[Track, list[Stop]]:
    """The track of a question, and its free stops; its answer is number 0. Fixed sets are events as well."""
    formulas = [a for a in asked if isinstance(a, Formula)]
    many = [a for a in asked if isinstance(a, Set) and spans_steps(a)]
    stops = stops_for([a for a in asked if not needs_track(a)], places.resolve)
    atoms = list(dict.fromkeys(atom for formula in formulas for atom in formula.atoms))
    truth = np.ones(1, dtype=bool) if not formulas else np.logical_and.reduce([f.truth(atoms) for f in formulas])
    events = [[spot for chosen in atom.sets for spot in neurons(places, chosen)] for atom in atoms]
    fixed = [neurons(places, chosen) for chosen in many]
    fixed += [[(stop.site, stop.frame.from_samples(stop.set_mask()))] for stop in stops if not stop.blocks]
    if len(events) + len(fixed) > ATOMS + BESIDE:
        raise QuestionError(
            "the question is too large", got=f"{len(atoms)} events of formulas and {len(fixed)} sets",
            expected=f"at most {ATOMS} events, and {ATOMS + BESIDE} of both",
            hint="nrm.visits(S1, S2, ...) of several sets is one event",
        )  # fmt: skip
    for _ in fixed:  # a set happens, or else nothing counts
        truth = np.concatenate([np.zeros_like(truth), truth])
    labels: AnswerNumbers = np.where(truth, 0, -1).astype(np.int64)
    return make_track(kept, [*events, *fixed], labels, weights), [stop for stop in stops if stop.blocks]


def make_track(
    kept: Kept, events: Sequence[Event], labels: AnswerNumbers, weights: Mapping[Site, Tensor] | None = None
) -> Track:
    """A track on the network of a measure, which has to be normalized: walks count wherever they begin."""
    if kept.network.normalize is not True:
        raise QuestionError(
            "formulas and weights need a normalized measure", got=f"normalize={kept.network.normalize!r}",
            hint="nrm.measure(..., normalize=True)",
        )  # fmt: skip
    ports: dict[int, list[str]] = {}
    for i, port in kept.base.drains:
        ports.setdefault(i, []).append(port)
    return Track(kept.network, ports, events, labels, weights)

"""The largest flows and walks of a measure, as a search on its network finds them."""

from __future__ import annotations

import torch
from torch import Tensor

from nrm.capture import plain_execution
from nrm.measure.asking import answer_condition, refuse_excluded
from nrm.measure.inner import Inner
from nrm.measure.labels import label_flows, label_walks
from nrm.questions import Question, downward, stops_for
from nrm.search import Flows, Found, Request, Side, Walk, find_flows, find_walks


def flows_of(inner: Inner, question: Question, request: Request) -> Flows:
    """Each sample's largest flows, with the names of their blocks."""
    side, whole = side_of(inner, question)
    with plain_execution():
        found = find_flows(
            [side], question.asked, whole.tolist(), inner.samples, request, memory=inner.memory,
            progress=inner.progress(),
        )  # fmt: skip
    return label_flows(found, inner.places, inner.names)


def walks_of(inner: Inner, k: int, sign: str, to_input: bool) -> Found[Walk]:
    """Each sample's largest walks, with the names of their neurons."""
    inner.origin.check_fresh()
    with plain_execution():
        inner.be_loud()
        found = find_walks(
            inner.network, inner.kept.start, inner.samples, k=k, sign=sign, to_input=to_input, memory=inner.memory,
            progress=inner.progress(),
        )  # fmt: skip
    return label_walks(found, inner.places, inner.names)


def side_of(inner: Inner, question: Question) -> tuple[Side, Tensor]:
    """What a search for flows needs of a measure, and the relevance of the condition (1 without one)."""
    inner.origin.check_fresh()
    with plain_execution():
        stops = downward(stops_for(question.asked, inner.resolve))
        refuse_excluded(inner, question)
        inner.be_loud()
        whole = (
            inner.mine(answer_condition(inner, question.condition))
            if question.given
            else torch.ones(len(inner.samples))
        )
        return Side(inner.network, inner.base, stops, inner.samples), whole

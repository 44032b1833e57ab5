"""Walks inside a circuit: every chain of its edges, counted one by one as a formula, and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import nrm
from laws.test_direct import EVERY, STREAMS, TOKENS, event, loud, measured
from nrm.capture import find_stream
from nrm.measure import DirectEdges
from nrm.questions import CircuitRoute, feeds


def route_of(R: nrm.Measure, edges: DirectEdges) -> CircuitRoute:
    stream = find_stream(R.inner.tape)
    assert stream is not None
    return CircuitRoute(R.inner.network, R.inner.base, stream, edges.writers, edges.readers)


@loud
@pytest.mark.parametrize(("kinds", "case"), EVERY)
def test_all_edges_are_the_whole_stream(kinds: str, case: str) -> None:
    R = measured(kinds, case, seed=2)
    edges = R.direct()
    mass, flow = route_of(R, edges).flows(torch.ones_like(edges.relevance[:1]))
    torch.testing.assert_close(mass, edges.relevance[:, :, -1].sum(1), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(flow, edges.relevance, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kinds", STREAMS)
def test_positions_have_flows_of_their_own(kinds: str) -> None:
    R = measured(kinds, "contrast", seed=2)
    edges = R.direct(positions=True)
    assert edges.relevance.shape[-1] == TOKENS
    _, flow = route_of(R, edges).flows(torch.ones_like(edges.relevance[:1]))
    torch.testing.assert_close(flow, edges.relevance, rtol=1e-9, atol=1e-11)


def chains(edges: DirectEdges, inside: Tensor, r: int) -> Iterator[list[tuple[int, int]]]:
    """Every way from where walks begin to a reader, as the edges of the circuit that it takes."""
    for w, writer in enumerate(edges.writers):
        if not inside[w, r] or writer.crossing > edges.readers[r].crossing:
            continue
        if writer.kind in ("embedding", "constant"):
            yield [(w, r)]
        for below, reader in enumerate(edges.readers):
            if feeds(reader, writer):
                for chain in chains(edges, inside, below):
                    yield [*chain, (w, r)]


def chain_formula(R: nrm.Measure, edges: DirectEdges, chain: list[tuple[int, int]]) -> Tensor:
    """The measure of the walks that pass exactly the writers and readers of a chain."""
    visited = [edges.writers[w] for w, _ in chain]
    read = [edges.readers[r] for _, r in chain if edges.readers[r].kind != "logits"]
    formula = None
    for end in [*visited, *read]:
        one = nrm.visits(event(R, end))
        formula = one if formula is None else formula & one
    others: dict[str, nrm.Set] = {}
    for other in edges.writers:
        if other not in visited and other.kind != "constant" and other.kind != "embedding":
            chosen = event(R, other)
            name = str(chosen.layer)
            others[name] = others[name] | chosen if name in others else chosen
    for chosen in others.values():
        assert formula is not None
        formula = formula & ~nrm.visits(chosen)
    return R(formula)


@loud
@pytest.mark.parametrize("kinds", STREAMS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_mass_of_a_circuit_is_that_of_its_chains(kinds: str, seed: int) -> None:
    R = measured(kinds, "contrast", seed=seed)
    edges = R.direct()
    torch.manual_seed(seed)
    sizes = len(edges.writers), len(edges.readers)
    inside = torch.rand(sizes) < (0.25 if sizes[0] > 6 else 0.7)
    found = list(itertools.islice(chains(edges, inside, sizes[1] - 1), 60))
    if len(found) == 60:  # a circuit of these chains alone has no others than made of their edges
        inside = torch.zeros(sizes, dtype=torch.bool)
        for chain in found[:3]:
            for w, r in chain:
                inside[w, r] = True
        found = list(chains(edges, inside, sizes[1] - 1))
    want = sum((chain_formula(R, edges, chain) for chain in found), torch.zeros(2).double())
    mass = route_of(R, edges).mass(inside.double()[None])
    torch.testing.assert_close(mass.expand(2), want, rtol=1e-9, atol=1e-11)


@loud
@pytest.mark.parametrize(("kinds", "case"), [("before", "gamma"), ("after", "lrp-0"), ("mixed", "contrast")])
def test_flows_inside_are_what_an_edge_brings(kinds: str, case: str) -> None:
    R = measured(kinds, case, seed=3)
    edges = R.direct()
    route = route_of(R, edges)
    torch.manual_seed(0)
    inside = (torch.rand(len(edges.writers), len(edges.readers)) < 0.6).double()[None]
    mass, flow = route.flows(inside)
    torch.testing.assert_close(mass, route.mass(inside))
    for _ in range(12):
        w, r = (int(torch.randint(n, ())) for n in inside.shape[1:])
        other = inside.clone()
        other[:, w, r] = 1 - other[:, w, r]
        gained = (route.mass(other) - mass) * (1 if inside[0, w, r] == 0 else -1)
        torch.testing.assert_close(flow[:, w, r], gained.expand(2), rtol=1e-9, atol=1e-11)


def test_samples_may_have_circuits_of_their_own() -> None:
    R = measured("before", "contrast")
    edges = R.direct()
    route = route_of(R, edges)
    inside = (torch.rand(2, len(edges.writers), len(edges.readers)) < 0.5).double()
    both = route.mass(inside)
    for n in range(2):
        torch.testing.assert_close(both[n], route.mass(inside[n : n + 1])[n])

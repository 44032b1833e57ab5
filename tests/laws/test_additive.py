"""Law 3 for weights on walks: additive relevance and expectations equal the list of walks, and are measures."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

import nrm
from laws.agreement import Both, drawn, law, law_of_each, masks, visited
from laws.test_formulas import logic
from networks import KINDS
from oracles import brute
from oracles.brute import Site, Walk

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")

every_kind = pytest.mark.parametrize("kind", KINDS)
SUMS = ("add", "sub", "index_add", "scatter_reduce")
MIXING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.AvgPool1d, nn.AvgPool2d, nn.MaxPool1d, nn.MaxPool2d)
Neurons = dict[Site, set[int]]


def levels(it: Both) -> dict[str, int]:
    """The longest way to every tensor in mixing steps, from the blocks of the oracle's network."""
    twin = it.twins[0]
    chains = [
        (share.parent, *(via for via, _ in share.via), name)
        for one in it.twins  # they differ in their sinks
        for name, shares in one.net.shares.items()
        for share in shares
    ]
    edges = {pair for chain in chains for pair in itertools.pairwise(chain)}

    def mixes(name: str) -> bool:
        function = name.rpartition("/")[2].partition("#")[0]
        constant = it.case.kind == "signs" and name == "/add"
        return isinstance(twin._module(name), MIXING) or (function in SUMS and not constant)

    found = {name: 0 for pair in edges for name in pair}
    for _ in found:
        for a, b in edges:
            found[b] = max(found[b], found[a] + mixes(b))
    return found


def proper(walk: Walk, level: dict[str, int]) -> list[tuple[Site, Site, int]]:
    """The walk in the proper network: who is in each layer, the tensor and the edge it is copied along."""
    last = level[walk[-1][0]]
    layers = []
    for number in range(last + 1):
        i = max(k for k, (tensor, _) in enumerate(walk) if level[tensor] <= number)
        tensor, neuron = walk[i]
        layers.append((tensor, (tensor, walk[i + 1][0]) if i + 1 < len(walk) else tensor, neuron))
    return layers


def share(walk: Walk, level: dict[str, int], chosen: Neurons) -> float:
    """How much of a walk lies in some neurons: the mean over the layers of the proper network."""
    layers = proper(walk, level)
    hits = [any(neuron in chosen.get(site, ()) for site in (tensor, edge)) for tensor, edge, neuron in layers]
    return sum(hits) / len(hits)


def chosen_sets(data: st.DataObject, it: Both, most: int = 4) -> tuple[list[nrm.Set], Neurons]:
    """Random sets of tensors, edges, biases and sinks, for both sides."""
    sets: list[nrm.Set] = []
    neurons: Neurons = {}
    for site in visited(data, it, [*it.inner, *it.edges], most):
        mask = data.draw(masks(it.shape(site)))
        sets.append(it.layer(site).where(mask))
        neurons.setdefault(site, set()).update(mask.flatten().nonzero().flatten().tolist())
    if it.late and data.draw(st.booleans()):
        name = data.draw(st.sampled_from(it.late))
        sets.append(it.R[name].all)
        neurons[name] = set(range(1000))
    return sets, neurons


def weighted(it: Both, weigh: object, variables: list[Site] | None = None) -> Tensor:
    """The oracle's sum over walks, each times a weight, in the library's shapes."""
    shapes = [it.shape(site) for site in variables or []]
    labels = [(s, torch.arange(torch.Size(shape).numel())) for s, shape in zip(variables or [], shapes, strict=True)]
    tables = [brute.table([(w, r * weigh(w)) for w, r in found], labels) for found in it.walks]
    return torch.stack(tables).reshape(len(it.walks), *(n for shape in shapes for n in shape))


@every_kind
@law_of_each
@given(data=st.data())
def test_additive_relevance_and_its_heat_map(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind, batch=2)
    level = levels(it)
    sets, neurons = chosen_sets(data, it)
    it.close(it.R.additive(*sets), weighted(it, lambda w: share(w, level, neurons)))
    site = data.draw(st.sampled_from([*it.tensors, *it.edges]))
    heat = it.R.additive(*sets, at=it.layer(site))
    it.close(heat, weighted(it, lambda w: share(w, level, neurons), [site]))


@every_kind
@law_of_each
@given(data=st.data())
def test_every_neuron_by_itself(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind, batch=2)
    level = levels(it)
    site = data.draw(st.sampled_from([*it.tensors, *it.edges]))
    everything = {site: set(range(1000))}
    it.close(it.R.additive(it.layer(site)), weighted(it, lambda w: share(w, level, everything), [site]))


@every_kind
@law_of_each
@given(data=st.data())
def test_it_is_a_measure_of_neurons(kind: str, data: st.DataObject) -> None:
    """Nothing has 0, all neurons together 1, and disjoint sets add up, whatever their layers."""
    it = drawn(data, kind, batch=2)
    R = it.R
    everything = [*(R[name].all for name in it.tensors), *(R[name].all for name in it.late)]
    it.close(R.additive(*everything), 1.0)
    it.close(sum(R.additive(one) for one in everything), 1.0)
    names = data.draw(st.lists(st.sampled_from(it.tensors), min_size=2, max_size=3, unique=True))
    sets = [R[name].where(data.draw(masks(it.shape(name)))) for name in names]
    it.close(R.additive(*sets), sum(R.additive(one) for one in sets))
    it.close(R.additive(sets[0], ~sets[0]), R.additive(sets[0].layer.all))
    it.close(R.additive(sets[0] & ~sets[0]), 0.0)


@pytest.mark.parametrize("kind", ["chain", "normed"])
@law
@given(data=st.data())
def test_the_mean_of_marginals_on_chains(kind: str, data: st.DataObject) -> None:
    """Without skips and biases a set of one layer has its marginal relevance, shared by all layers."""
    it = drawn(data, kind, bias="ignore", zero="uniform")
    linear = [name for name in it.tensors if name.startswith("lin")]
    inputs = ["input", *(name for name in it.tensors if name.startswith("act"))]
    for name in [*inputs, it.tensors[-1]]:
        it.close(it.R.additive(it.R[name]), it.R(it.R[name]) / (len(linear) + 1))


@every_kind
@law_of_each
@given(data=st.data())
def test_chosen_cuts(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind, batch=2)
    names = data.draw(st.lists(st.sampled_from(it.tensors), min_size=1, max_size=3))
    cuts = [it.R.cut(name) for name in names]
    parts = [[(p.name if p.consumer is None else (p.name, p.consumer)) for p in cut] for cut in cuts]
    known = [p for cut in parts for p in cut if (p if isinstance(p, str) else p[0]) in it.twins[0].shapes]
    sets: list[nrm.Set] = []
    neurons: Neurons = {}
    for part in data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)) if known else []:
        site = part if isinstance(part, str) or data.draw(st.booleans()) else part[0]  # the copy, or the whole tensor
        mask = data.draw(masks(it.shape(site)))
        sets.append(it.layer(site).where(mask))
        neurons.setdefault(site, set()).update(mask.flatten().nonzero().flatten().tolist())

    def weigh(walk: Walk) -> float:
        crossed = [next(p for p in cut if brute.position(walk, p) is not None) for cut in parts]
        hits = [
            any(brute.position(walk, p) in neurons.get(s, ()) for s in (p, p if isinstance(p, str) else p[0]))
            for p in crossed
        ]
        return sum(hits) / len(parts)

    if sets:
        it.close(it.R.additive(*sets, layers=cuts), weighted(it, weigh))
    everything = {p if isinstance(p, str) else p[0] for cut in parts for p in cut}
    it.close(it.R.additive(*(it.R[name].all for name in everything), layers=cuts), 1.0)


@every_kind
@law_of_each
@given(data=st.data())
def test_expectations(kind: str, data: st.DataObject) -> None:
    """Any weights of neurons in any layers, beside formulas, sets and free layers."""
    it = drawn(data, kind, batch=2)
    sites = list(dict.fromkeys(visited(data, it, [*it.inner, *it.edges], 3)))
    seed = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    numbers = {s: torch.randn(it.shape(s), generator=seed, dtype=torch.float64) for s in sites}
    flat = {s: number.flatten().tolist() for s, number in numbers.items()}
    one = logic(data, it, 2)

    def weigh(walk: Walk) -> float:
        places = {site: brute.position(walk, site) for site in sites}
        return sum(flat[s][n] for s, n in places.items() if n is not None)

    weights = {it.layer(site): number for site, number in numbers.items()}
    it.close(it.R.expect(weights), weighted(it, weigh))
    free = data.draw(st.sampled_from([*it.tensors, *it.edges]))
    it.close(it.R.expect(weights, it.layer(free)), weighted(it, weigh, [free]))
    both = weighted(it, lambda w: weigh(w) * one.holds(w), [free])
    it.close(it.R.expect(weights, it.layer(free), one.formula), both)
    it.close(it.R.expect(weights, one.formula), weighted(it, lambda w: weigh(w) * one.holds(w)))


@every_kind
@law_of_each
@given(data=st.data())
def test_joint_relevance_is_an_expectation(kind: str, data: st.DataObject) -> None:
    """A weight of 1 on a set, or on a whole cut beside any sets."""
    it = drawn(data, kind, batch=2)
    R = it.R
    names = data.draw(st.lists(st.sampled_from(it.inner), min_size=2, max_size=2, unique=True))
    a, b = (R[name].where(data.draw(masks(it.shape(name)))) for name in names)
    it.close(R.expect({a: 1.0}), R(a))
    it.close(R.expect({a: 1.0}, b), R(a, b))
    it.close(R.expect({a: 2.0, b: -1}), 2 * R(a) - R(b))
    it.close(R.expect({a: 2.0, a.layer: 0.5, ~a: 1.0}), 2.5 * R(a) + 1.5 * R(~a))
    once = dict.fromkeys(R.cut(data.draw(st.sampled_from(it.tensors))), 1.0)
    it.close(R.expect(once), 1.0)
    it.close(R.expect(once, a, b), R(a, b))


@every_kind
@law_of_each
@given(data=st.data())
def test_additive_relevance_is_an_expectation(kind: str, data: st.DataObject) -> None:
    """A weight on every edge, as many layers as it spans out of all of them, and one on the output."""
    it = drawn(data, kind, batch=2)
    R, level = it.R, levels(it)
    last = it.walks[0][0][0][-1][0]
    names = data.draw(st.lists(st.sampled_from(it.inner), max_size=3))
    masked = {name: data.draw(masks(it.shape(name))) for name in names}
    share = 1 / (level[last] + 1)
    weights: dict[nrm.Layer | nrm.Set, float] = {R.output: share}
    for a, c in it.edges:
        if a in masked:
            weights[it.layer((a, c)).where(masked[a])] = share * (level[c] - level[a])
    parts = [R[name].where(mask) for name, mask in masked.items()]
    it.close(R.expect(weights), R.additive(*parts, R.output.all))
    free = it.layer(data.draw(st.sampled_from([*it.tensors, *it.edges])))
    it.close(R.expect(weights, free), R.additive(*parts, R.output.all, at=free))

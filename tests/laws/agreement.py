"""One question, two answers: the library's measure of a drawn network beside the list of its walks."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pytest
import torch
from hypothesis import HealthCheck, assume, settings, strategies as st
from torch import Tensor

import nrm
from networks import Case, cases
from oracles import brute
from oracles.brute import Site, Walk
from oracles.twin import RULES, Rules, Twin

patient = [HealthCheck.too_slow, HealthCheck.filter_too_much]
law = settings(suppress_health_check=patient)
# A law that is run for every kind of network, or for several rules, has a share of the examples for each of them: about
# eighty in all, and a hundred of each where there is time.
many = settings().max_examples // 3
law_of_each = settings(max_examples=many if many > 50 else 3, suppress_health_check=patient)
law_of_some = settings(max_examples=many if many > 50 else 10, suppress_health_check=patient)

everywhere = st.sampled_from(sorted(RULES)).map(Rules)
plain = st.sampled_from(["lrp0", "gamma", "zplus", "alpha2beta1"]).map(Rules)
options = st.fixed_dictionaries(
    {"bias": st.sampled_from(["ignore", "input"]), "zero": st.sampled_from(["sink", "uniform"])}
)


@dataclass
class Both:
    """A network under the same rules, target and options on both sides, one list of walks per sample."""

    case: Case
    rules: Rules
    R: nrm.Measure
    twins: list[Twin]
    walks: list[list[tuple[Walk, float]]]

    @cached_property
    def scale(self) -> float:
        """The total variation of the walks, which bounds what rounding can do to any sum of them."""
        return max(1.0, *(sum(abs(r) for _, r in found) for found in self.walks))

    @property
    def tensors(self) -> list[str]:
        """Every tensor with a shape of its own: user inputs, parameters, steps, and what lies inside a fused step."""
        return list(self.twins[0].shapes)

    @property
    def inner(self) -> list[str]:
        """All but the output: a set of outputs that the target excludes is an error, not 0."""
        return [name for name in self.tensors if name != self.twins[0].net.output]

    @cached_property
    def edges(self) -> list[tuple[str, str]]:
        """Every copy of a tensor on its way to a consumer that some walk takes; biases and sinks are no tensors."""
        pairs = {
            (a, b)
            for found in self.walks
            for walk, _ in found
            for (a, _), (b, _) in itertools.pairwise(walk)
            if a in self.twins[0].shapes
        }
        return sorted(pairs)

    @cached_property
    def late(self) -> list[str]:
        """Every bias and sink that some walk begins at."""
        passed = {tensor for found in self.walks for walk, _ in found for tensor, _ in walk}
        return sorted(passed - self.twins[0].shapes.keys())

    def shape(self, site: Site) -> tuple[int, ...]:
        return self.twins[0].shapes[site if isinstance(site, str) else site[0]]

    def layer(self, site: Site) -> nrm.Layer:
        return self.R[site] if isinstance(site, str) else self.R.edge(*site)

    def truth(self, variables: Sequence[Site], events: Sequence[tuple[Site, Tensor]] = ()) -> Tensor:
        """The oracle's table, in the shapes of the library: (batch, *shape of each variable)."""
        shapes = [self.shape(site) for site in variables]
        labelled = [(site, torch.arange(math.prod(shape))) for site, shape in zip(variables, shapes, strict=True)]
        happened = [brute.at(site, mask.flatten().nonzero().flatten().tolist()) for site, mask in events]
        tables = [brute.table(found, labelled, *happened) for found in self.walks]
        return torch.stack(tables).reshape(len(self.walks), *(n for shape in shapes for n in shape))

    def close(self, answer: Tensor, truth: Tensor | float, scale: float | None = None) -> None:
        """Equal up to what rounding may do to sums of walks."""
        truth = torch.as_tensor(truth, dtype=torch.float64).expand_as(answer)
        torch.testing.assert_close(answer, truth, rtol=1e-8, atol=1e-10 * (scale or self.scale))


def ask(case: Case, rules: Rules, target: object, **options: object) -> nrm.Measure:
    """The library's measure, in float64, its warnings about tiny odd networks left aside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nrm.NrmWarning)
        return nrm.measure(
            case.model, case.argument, target=target, rules=rules.library(case.model), dtype=torch.float64, **options
        )


def both(case: Case, rules: Rules, targets: Sequence[int] | str, **options: str) -> Both:
    """Both sides of a case; drops networks that are too large, or so ill-conditioned that rounding decides.

    If more than a tenth of the mass is in sinks, the library must refuse to answer; the case goes on without sinks.
    """
    twins, lists = [], []
    for sample in range(len(case)):
        twin = case.twin(rules, sample, **options)
        twin.net.explain(twin.net.output, targets if isinstance(targets, str) else targets[sample])
        assume(max(float(c.max()) for c in twin.net.condition.values()) < 1e4)
        try:
            found = brute.walks(twin.net, limit=5000)
        except brute.TooManyWalks:
            assume(False)
        assume(sum(abs(r) for _, r in found) < 1e4)
        assume(not limits(twin, found))
        twins.append(twin)
        lists.append(found)
    R = ask(case, rules, targets if isinstance(targets, str) else torch.tensor(targets), **options)
    leaks = [sum(abs(mass) for mass in sinks(found).values()) for found in lists]
    if max(leaks) > 0.1:
        with pytest.raises(nrm.MassError):
            R(R.output)
        return both(case, rules, targets, **(options | {"zero": "uniform"}))
    return Both(case, rules, R, twins, lists)


def limits(twin: Twin, found: Sequence[tuple[Walk, float]]) -> bool:
    """Whether a column without mass is reached that is the limit of columns with mass, which shares cannot express."""
    net = twin.net
    exact = {(name, int(j)) for name, dead in net.dead.items() if net.proportional[name] for j in dead.nonzero()}
    zero = {(net.output, int(j)) for j in (net.values[net.output] == 0).nonzero()}
    return any(place in exact or place in zero for walk, relevance in found for place in walk if relevance)


def sinks(found: Sequence[tuple[Walk, float]]) -> dict[str, float]:
    """The mass that ends in the sink of each step."""
    names = {walk[0][0] for walk, _ in found if ".sink" in walk[0][0]}
    return {name: brute.measure(found, brute.at(name)) for name in names}


def drawn(
    data: st.DataObject,
    kind: str,
    batch: int = 1,
    rules: st.SearchStrategy[Rules] = everywhere,
    biases: bool | None = None,
    **fixed: str,
) -> Both:
    """Draws the network, the rules, the target and the options; `fixed` options are not drawn."""
    case = data.draw(cases(kind, batch=batch, biases=biases))
    targets = data.draw(st.lists(st.integers(0, case.outputs.shape[1] - 1), min_size=batch, max_size=batch))
    chosen = data.draw(options) | fixed
    return both(case, data.draw(rules), targets, **chosen)


def masks(shape: tuple[int, ...]) -> st.SearchStrategy[Tensor]:
    """Any set of neurons of a layer, the empty and the full one included."""
    count = math.prod(shape)
    return st.lists(st.booleans(), min_size=count, max_size=count).map(lambda bits: torch.tensor(bits).reshape(shape))


def visited(data: st.DataObject, both: Both, sites: Sequence[Site], count: int) -> list[Site]:
    """Up to `count` sites, mostly on one walk: random sites are often parallel, and their joint relevance 0."""
    found = [walk for walk, _ in both.walks[0]]
    if found and data.draw(st.integers(0, 3)):
        walk = data.draw(st.sampled_from(found))
        sites = [site for site in sites if brute.position(walk, site) is not None] or sites
    return data.draw(st.lists(st.sampled_from(list(sites)), min_size=1, max_size=count))


def subsets(items: Sequence[object]) -> Iterator[tuple[object, ...]]:
    """Every subset, for inclusion and exclusion."""
    for bits in range(2 ** len(items)):
        yield tuple(item for k, item in enumerate(items) if bits >> k & 1)

"""Laws 2 and 5: marginals agree between any two layers, tables sum to coarser tables, whichever way they are asked."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

from laws.agreement import drawn, law_of_each, law_of_some, masks
from networks import KINDS

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@law_of_each
@given(data=st.data())
def test_marginals_between_any_two_layers(kind: str, data: st.DataObject) -> None:
    """Summing a joint over a whole cut gives the marginal back: sum_b R(a, b) = R(a)."""
    it = drawn(data, kind, batch=2)
    a, b = (data.draw(st.sampled_from(it.tensors)) for _ in "ab")
    layer = it.R[a]
    whole = sum(it.R(layer, part.all) for part in it.R.cut(b))
    it.close(whole, it.R(layer))


@every_kind
@law_of_each
@given(data=st.data())
def test_the_heat_map_of_an_interaction_sums_to_it(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind, batch=2)
    sets = []
    for _ in range(data.draw(st.integers(1, 2))):
        name = data.draw(st.sampled_from(it.inner))
        sets.append(it.R[name].where(data.draw(masks(it.shape(name)))))
    maps = [it.R(part, *sets).flatten(1).sum(1) for part in it.R.inputs]
    it.close(sum(maps), it.R(*sets))


@every_kind
@law_of_each
@given(data=st.data())
def test_tables_pair_by_pair_and_from_the_other_side(kind: str, data: st.DataObject) -> None:
    """The one-shot table, each of its entries asked alone, and the table asked the other way round."""
    it = drawn(data, kind)
    names = data.draw(st.lists(st.sampled_from(it.inner), min_size=2, max_size=2, unique=True))
    a, b = (it.R[name] for name in names)
    na, nb = (math.prod(it.shape(name)) for name in names)
    table = it.R(a, b).reshape(na, nb)
    other = it.R(b, a).reshape(nb, na)
    it.close(table, other.T)
    i, j = data.draw(st.integers(0, na - 1)), data.draw(st.integers(0, nb - 1))
    one = torch.zeros(na, dtype=torch.bool)
    one[i] = True
    it.close(it.R(a.where(one.reshape(it.shape(names[0]))), b)[0].flatten(), table[i])
    two = torch.zeros(nb, dtype=torch.bool)
    two[j] = True
    two = two.reshape(it.shape(names[1]))
    it.close(it.R(a, b.where(two))[0].flatten(), table[:, j])
    it.close(it.R(a.where(one.reshape(it.shape(names[0]))), b.where(two)), table[i, j])


@every_kind
@law_of_each
@given(data=st.data())
def test_groups(kind: str, data: st.DataObject) -> None:
    """Any labels: the table of groups is the table of neurons, summed; -1 is left out; labels may differ by sample."""
    it = drawn(data, kind, batch=2)
    name, second = data.draw(st.sampled_from(it.tensors)), data.draw(st.sampled_from(it.tensors))
    shape, batch = it.shape(name), 2
    own = data.draw(st.booleans())
    count = math.prod(shape) * (batch if own else 1)
    labels = torch.tensor(data.draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count)))
    labels[0] = 2  # so that there are three groups
    labels = labels.reshape(batch, *shape) if own else labels.reshape(shape)
    b = it.R[second]
    fine = it.R(it.R[name], b)  # (batch, *shape, *shape of b)
    coarse = it.R(it.R[name].groups(labels), b)
    each = labels if own else labels.expand(batch, *shape)
    for k in range(3):
        member = (each == k).reshape(batch, *shape, *[1] * len(it.shape(second)))
        it.close(coarse[:, k], (fine * member).flatten(1, len(shape)).sum(1))


@pytest.mark.parametrize("kind", ["conv1d", "conv2d", "conv residual"])
@law_of_some
@given(data=st.data())
def test_channels_and_positions(kind: str, data: st.DataObject) -> None:
    """Channels and positions are sums of the oracle's fine table, as axes and one by one, with an event elsewhere."""
    it = drawn(data, kind, batch=2)
    inner = [name for name in it.inner if len(it.shape(name)) > 1 and name != "input"]
    a, b = (data.draw(st.sampled_from(inner)) for _ in "ab")
    A, B, R = it.R[a], it.R[b], it.R
    da, db = len(it.shape(a)), len(it.shape(b))
    fine = it.truth([a, b])
    spatial_a, spatial_b = tuple(range(2, 1 + da)), tuple(range(2 + da, 1 + da + db))
    pairs = fine.sum(spatial_a + spatial_b)
    it.close(R(A.channels, B.channels), pairs)
    it.close(R(B.channels, A.channels), pairs.transpose(1, 2))
    it.close(R(A.positions, B.channels), fine.sum((1, *spatial_b)))
    i, j = (data.draw(st.integers(0, it.shape(name)[0] - 1)) for name in (a, b))
    it.close(R(A.channel(i), B.channel(j)), pairs[:, i, j])
    it.close(R(A.channels[i], B), fine[:, i].sum(tuple(range(1, da))))
    it.close(R(A.channels[[i]], B.channel(j))[:, 0], pairs[:, i, j])
    it.close(R(A.axis(0), B.channels), pairs)
    it.close(R(A[i], B.channels), pairs[:, i])
    other = data.draw(st.sampled_from(it.inner))
    mask = data.draw(masks(it.shape(other)))
    fine = it.truth([a, b], [(other, mask)])
    it.close(R(it.R[other].where(mask), A.channels, B.channels), fine.sum(spatial_a + spatial_b))
    it.close(R(A.channels, it.R[other].where(mask), B.positions), fine.sum((*spatial_a, 1 + da)))

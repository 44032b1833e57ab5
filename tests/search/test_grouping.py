"""Grouping: clusters are scikit-learn's, coarse groups keep pair information, and nothing is lost or counted twice."""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

import nrm
from nrm.extras import MissingExtraError
from nrm.search import pair_information
from nrm.search.coarsening import _grouped, _share_kept
from real import models

pytest.importorskip("sklearn")


def convolutions(batch: int = 2) -> nrm.Measure:
    model = nn.Sequential(
        nn.Conv2d(3, 10, 3), nn.ReLU(), nn.Conv2d(10, 12, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 36, 4)
    )
    return nrm.measure(model.eval(), torch.rand(batch, 3, 10, 10), rules="epsilon-plus")


def dense(rules: str = "lrp-0", batch: int = 2, bias: str = "input") -> nrm.Measure:
    model = nn.Sequential(nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5))
    return nrm.measure(model.eval(), torch.rand(batch, 9), rules=rules, bias=bias)


def labels_of(partition: nrm.Partition) -> Tensor:
    labels: Tensor = partition.detail[0].tensor
    return labels


def same_groups(a: Sequence[int], b: Sequence[int]) -> bool:
    return len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))


# Clusters


def test_clusters_are_k_means_of_every_samples_positions() -> None:
    from sklearn.cluster import KMeans

    R = convolutions()
    a = R["1"]
    labels = labels_of(nrm.cluster(R, a, k=4, seed=3))
    assert labels.shape == (2, 1, 8, 8)
    for sample in range(2):
        vectors = R.values(a)[sample].flatten(1).T.double().numpy()
        wanted = KMeans(4, n_init=4, random_state=3).fit(vectors).labels_
        assert same_groups(labels[sample].flatten().tolist(), wanted.tolist())


def test_clusters_are_an_axis_whose_masses_add_up_and_fall() -> None:
    R = convolutions()
    a, b = R["1"], R["3"]
    parts = nrm.cluster(R, a, k=5)
    share = R(parts)
    assert share.shape == (2, 5)
    assert (share.diff(dim=1) <= 0).all()
    torch.testing.assert_close(share.sum(1), R(a.all))
    torch.testing.assert_close(R(parts, b.channels).sum(1), R(b.channels))
    torch.testing.assert_close(R(nrm.cluster(R, b, k=3), parts).sum((1, 2)), torch.ones(2))


def test_the_same_seed_gives_the_same_clusters_in_every_form_of_the_layer() -> None:
    R = convolutions()
    first = nrm.cluster(R, "1", k=4, seed=1)
    for layer in ("1", R["1"], nrm.layer("1"), R["1"].positions):
        assert nrm.cluster(R, layer, k=4, seed=1) == first


def test_one_samples_measure_gives_its_own_map() -> None:
    R = convolutions(3)
    whole, one = nrm.cluster(R, "1", k=4), nrm.cluster(R.sample(1), "1", k=4)
    assert torch.equal(labels_of(one), labels_of(whole)[1])
    torch.testing.assert_close(R.sample(1)(one), R(whole)[1:2])
    assert R(one).shape == (3, 4)  # a shared map: the same positions in every sample


def test_fewer_distinct_positions_than_clusters() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    x = torch.zeros(2, 1, 6, 6)
    x[0, 0, :2], x[0, 0, 4:], x[1] = 1.0, 2.0, 0.5
    R = nrm.measure(model, x, rules="epsilon-plus", bias="input")
    parts = nrm.cluster(R, R.input, k=8)
    labels = labels_of(parts)
    assert same_groups(labels[0].flatten().tolist(), (2 * x[0]).long().flatten().tolist())
    assert labels[1].unique().tolist() == [0]
    assert R(parts).shape == (2, 3)
    torch.testing.assert_close(R(parts)[1, 1:], torch.zeros(2))


@pytest.mark.parametrize("shape", [(5, 12), (5, 4, 3, 2)])
def test_any_number_of_position_axes(shape: tuple[int, ...]) -> None:
    convolution = {2: nn.Conv1d, 4: nn.Conv3d}[len(shape)]
    model = nn.Sequential(convolution(5, 4, 1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    x = torch.rand(2, *shape)
    model(x)
    R = nrm.measure(model, x, rules="epsilon-plus")
    parts = nrm.cluster(R, "1", k=3)
    assert labels_of(parts).shape == (2, 1, *shape[1:])
    torch.testing.assert_close(R(parts).sum(1), R(R["1"].all))


def test_channels_last_and_recurrent_axes() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(35, 2))
    R = nrm.measure(model, torch.rand(2, 7, 6), rules="epsilon-plus")
    assert labels_of(nrm.cluster(R, "1", k=3)).shape == (2, 7, 1)
    assert labels_of(nrm.cluster(R, R["1"].with_channels(0), k=3)).shape == (2, 1, 5)


class Folded(nn.Module):
    """Several pictures per sample, folded into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.head = nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Linear(2 * 4 * 25, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.conv(x.flatten(0, 1)))
        return self.head(h.reshape(len(x), -1))


def test_samples_that_share_a_tensor_cluster_their_own_positions() -> None:
    torch.manual_seed(0)
    model = Folded()
    for parameter in model.parameters():
        parameter.data.abs_()
    R = nrm.measure(model, torch.rand(3, 2, 3, 5, 5), rules="epsilon-plus")
    parts = nrm.cluster(R, "relu", k=3)
    own = labels_of(parts).flatten(1) >= 0
    torch.testing.assert_close(R(parts).sum(1), torch.ones(3))
    assert (own.sum(0) == 1).all()
    for sample in range(3):
        alone = R.sample(sample)
        torch.testing.assert_close(alone(nrm.cluster(alone, "relu", k=3)), R(parts)[sample : sample + 1])


def test_other_partitions_cluster_their_own_blocks() -> None:
    R = convolutions()
    a = R["1"]
    by_map = nrm.cluster(R, a.channels, k=3)
    assert labels_of(by_map).shape == (2, 10, 1, 1)
    torch.testing.assert_close(R(by_map).sum(1), R(a.all))
    corner = nrm.cluster(R, a.positions[:3, 2:5], k=2)
    inside = labels_of(corner)[:, 0] >= 0
    assert inside[:, :3, 2:5].all()
    assert int(inside.sum()) == 2 * 9
    torch.testing.assert_close(R(corner).sum(1), R(a[:, :3, 2:5]))


def test_the_callers_threads_and_model_are_left_alone() -> None:
    R = convolutions()
    before = R.values("1")
    state = torch.get_rng_state()
    nrm.cluster(R, "1", k=3)
    assert torch.equal(R.values("1"), before)
    assert torch.equal(torch.get_rng_state(), state)


BAD_CLUSTERS: dict[str, tuple[Callable[[nrm.Measure], Any], str, str]] = {
    "no positions": (lambda R: nrm.cluster(R, "5"), "has no positions", "(4,)"),
    "labels": (lambda R: nrm.cluster(R, R["1"].groups(torch.zeros(10, 8, 8).long())), "no blocks along axes", "groups"),
    "set": (lambda R: nrm.cluster(R, R["1"].channel(0)), "not a layer", "channel(0)"),
    "unknown": (lambda R: nrm.cluster(R, "conv9"), "conv9", ""),
    "k": (lambda R: nrm.cluster(R, "1", k=0), "not a number of groups", "k=0"),
    "k text": (lambda R: nrm.cluster(R, "1", k="8"), "not a number of groups", "k='8'"),
    "seed": (lambda R: nrm.cluster(R, "1", seed=-1), "not a seed", "seed=-1"),
    "twice": (lambda R: nrm.cluster(R, R["1"].channels[[1, 1]]), "chosen twice", "[1, 1]"),
    "one": (lambda R: nrm.coarsen(R, R["1"].channels), "pairs need two layers", "1 partition"),
    "none": (lambda R: nrm.coarsen(R), "pairs need two layers", "0 partitions"),
    "event": (lambda R: nrm.coarsen(R, R["1"].channels, R["3"].channel(0)), "not a partition", "channel(0)"),
    "name": (lambda R: nrm.coarsen(R, "1", "3"), "not a partition", "'1'"),
    "same": (lambda R: nrm.coarsen(R, R["1"].channels, R["1"].positions), "given twice", "1.positions"),
    "k groups": (lambda R: nrm.coarsen(R, R["1"].channels, R["3"].channels, k=-2), "not a number of groups", "k=-2"),
}


@pytest.mark.parametrize("case", BAD_CLUSTERS)
def test_bad_questions_have_a_clear_text(case: str) -> None:
    ask, what, got = BAD_CLUSTERS[case]
    with pytest.raises(nrm.QuestionError, match=what) as caught:
        ask(convolutions(1))
    assert got in str(caught.value)
    assert caught.value.where in ("nrm.cluster", "nrm.coarsen")


def test_activations_that_are_not_finite_are_refused() -> None:
    R = nrm.measure(nn.Sequential(nn.Conv1d(2, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)), torch.rand(1, 2, 4))
    values = R.values("1")
    values[0, 0, 0] = torch.inf
    R.values = lambda layer: values  # type: ignore[method-assign, assignment, misc]
    with pytest.raises(nrm.QuestionError, match="not finite"):
        nrm.cluster(R, "1", k=2)


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "sklearn":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **options)

    R = convolutions(1)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError, match=r'pip install "nrm\[cluster\]"'):
        nrm.cluster(R, "1")
    assert len(nrm.coarsen(R, R["1"].channels, R["3"].channels, k=3)) == 2  # needs no extra


# Pair information


@given(st.integers(0, 10**6), st.booleans())
def test_pair_information_is_mutual_information_or_total_correlation(seed: int, signed: bool) -> None:
    from sklearn.metrics import mutual_info_score

    counts = np.random.default_rng(seed).integers(-9 if signed else 0, 10, (4, 5))
    counts[0, 0] = 1
    ours = float(pair_information(torch.from_numpy(counts)))
    if not signed:
        assert ours == pytest.approx(mutual_info_score(None, None, contingency=counts), abs=1e-9)
        return
    p = {(x, y, int(np.sign(c))): abs(c) / np.abs(counts).sum() for (x, y), c in np.ndenumerate(counts) if c}
    parts = [{v: sum(q for key, q in p.items() if key[i] == v) for v in {key[i] for key in p}} for i in range(3)]
    wanted = sum(q * np.log(q / np.prod([parts[i][key[i]] for i in range(3)])) for key, q in p.items())
    assert ours == pytest.approx(wanted, abs=1e-9)


@given(st.integers(0, 10**6), st.integers(1, 7), st.booleans())
def test_groups_keep_a_share_and_never_less_than_random_ones(seed: int, k: int, signed: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(1, 9, 7, generator=generator)
    table = table if signed else table.abs()
    found = [torch.from_numpy(g)[None] for g in _grouped([table[0]], k)]
    kept = float(_share_kept(table, *found))
    assert -1e-9 <= kept <= 1 + 1e-9
    assert all(int(g.max()) < k for g in found)
    if k == 1:
        assert kept == pytest.approx(0, abs=1e-9)
    chance = [torch.randint(k, (1, n), generator=generator) for n in (9, 7)]
    assert kept >= float(_share_kept(table, *chance)) - 1e-9


def test_as_many_groups_as_blocks_keep_everything() -> None:
    table = torch.randn(1, 6, 8)
    found = [torch.from_numpy(g)[None] for g in _grouped([table[0]], 8)]
    assert float(_share_kept(table, *found)) == pytest.approx(1)


def every_grouping(n: int, k: int) -> list[tuple[int, ...]]:
    """All ways to put n blocks into at most k groups, each once."""
    return [g for g in itertools.product(range(k), repeat=n) if list(dict.fromkeys(g)) == sorted(set(g))]


@pytest.mark.parametrize("signed", [False, True])
def test_small_tables_come_near_the_best_of_all_groupings(signed: bool) -> None:
    rows, columns = every_grouping(6, 2), every_grouping(5, 2)
    pairs = [(r, c) for r in rows for c in columns]
    ratios = []
    for seed in range(20):
        table = torch.randn(1, 6, 5, generator=torch.Generator().manual_seed(seed))
        table = table if signed else table.abs()
        many = table.expand(len(pairs), -1, -1)
        best = float(_share_kept(many, *(torch.tensor([p[i] for p in pairs]) for i in range(2))).max())
        ours = float(_share_kept(table, *(torch.from_numpy(g)[None] for g in _grouped([table[0]], 2))))
        assert ours <= best + 1e-9
        ratios.append(ours / best)
    assert np.mean(ratios) > 0.97
    assert min(ratios) > 0.75


def planted(seed: int, sizes: Sequence[int], k: int, signed: bool) -> tuple[list[Tensor], list[list[int]]]:
    """A chain of tables whose entries depend on the groups of their blocks and on the blocks' own weights only."""
    random = np.random.default_rng(seed)
    groups = [random.permutation(np.arange(n) % k) for n in sizes]
    weights = [random.uniform(0.2, 1.0, n) for n in sizes]
    tables = []
    for i in range(len(sizes) - 1):
        coarse = random.uniform(0.05, 1.0, (k, k)) * (random.choice([-1, 1], (k, k)) if signed else 1)
        fine = coarse[groups[i]][:, groups[i + 1]] * weights[i][:, None] * weights[i + 1]
        tables.append(torch.from_numpy(fine))
    return tables, [g.tolist() for g in groups]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_planted_groups_are_found_exactly(seed: int, signed: bool) -> None:
    tables, groups = planted(seed, (40, 64, 30), 5, signed)
    found = _grouped(tables, 5)
    for mine, wanted in zip(found, groups, strict=True):
        assert same_groups(mine.tolist(), wanted)
    for i, table in enumerate(tables):
        kept = _share_kept(table[None], *(torch.from_numpy(g)[None] for g in found[i : i + 2]))
        assert float(kept) == pytest.approx(1)


def test_signs_count_where_sizes_are_all_alike() -> None:
    sign = torch.tensor([1.0, 1, -1, -1, 1, -1])
    table = (sign[:, None] * torch.tensor([1.0, -1, 1, -1]))[None]
    rows, columns = _grouped([table[0]], 2)
    assert same_groups(rows.tolist(), sign.long().tolist())
    assert same_groups(columns.tolist(), [1, -1, 1, -1])


# Coarsening a measure


def test_planted_structure_of_a_network_is_found() -> None:
    torch.manual_seed(0)
    groups = [torch.arange(n)[torch.randperm(n)] % 3 for n in (12, 18, 15)]
    model = nn.Sequential(
        nn.Linear(12, 18, bias=False), nn.ReLU(), nn.Linear(18, 15, bias=False), nn.ReLU(), nn.Linear(15, 1, bias=False)
    )
    for layer, (low, high) in zip((model[0], model[2]), itertools.pairwise(groups), strict=True):
        coarse = torch.rand(3, 3) + 0.05
        weight = coarse[high][:, low] * torch.rand(len(high), 1) * torch.rand(1, len(low))
        layer.weight.data = weight
    model[4].weight.data.abs_()
    R = nrm.measure(model.double(), torch.rand(1, 12).double() + 0.1, rules="lrp-0", bias="ignore", dtype=torch.float64)
    found = nrm.coarsen(R, R.input, R["1"].channels, R["3"].channels, k=3)
    torch.testing.assert_close(found.kept, torch.ones(1, 2, dtype=torch.float64))
    for mine, wanted in zip(found.labels, groups, strict=True):
        assert same_groups(mine[0].tolist(), wanted.tolist())


@pytest.mark.parametrize("rules", ["lrp-0", "epsilon-plus"])
def test_groups_are_unions_of_blocks_and_masses_add_up(rules: str) -> None:
    R = dense(rules)
    parts = [R["1"].channels, R["3"].channels, R["4"].channels]
    found = nrm.coarsen(R, *parts, k=4)
    assert len(found) == 3
    assert found.kept.shape == (2, 2)
    assert ((found.kept > 0) & (found.kept < 1 + 1e-9)).all()
    for i, (part, mine) in enumerate(zip(parts, found, strict=True)):
        share = R(mine)
        assert (share.diff(dim=1) <= 1e-6).all()
        torch.testing.assert_close(share.sum(1), R(part.layer.all))
        for sample, group in itertools.product(range(2), range(share.shape[1])):
            members = found.members(i, group, sample)
            torch.testing.assert_close(share[sample, group], R(part)[sample, members].sum())
    low, high = (torch.nn.functional.one_hot(g).float() for g in found.labels[:2])
    table = torch.einsum("bxy,bxu,byv->buv", R(parts[0], parts[1]), low, high)
    torch.testing.assert_close(R(found[0], found[1]), table)
    assert "pair information kept" in repr(found)


def test_the_order_of_the_arguments_does_not_matter_and_runs_agree() -> None:
    R = dense()
    a, b, c = R.input, R["1"].channels, R["3"].channels
    forward, backward = nrm.coarsen(R, a, b, c, k=3), nrm.coarsen(R, c, a, b, k=3)
    assert forward.partitions == (backward[1], backward[2], backward[0])
    assert torch.equal(forward.kept, backward.kept)


def test_one_samples_groups_are_those_of_the_batch() -> None:
    R = dense(batch=3)
    whole = nrm.coarsen(R, R["1"].channels, R["3"].channels, k=3)
    one = nrm.coarsen(R.sample(2), R["1"].channels, R["3"].channels, k=3)
    assert torch.equal(one.labels[0], whole.labels[0][2:])
    torch.testing.assert_close(R.sample(2)(*one), R(*whole)[2:])
    torch.testing.assert_close(one.kept, whole.kept[2:])


def test_positions_chosen_blocks_and_earlier_groups_can_be_coarsened() -> None:
    R = convolutions()
    a, b = R["1"], R["3"]
    clusters = nrm.cluster(R, b, k=6)
    found = nrm.coarsen(R, a.positions, b.channels[[0, 2, 4, 6, 8]], k=2)
    assert labels_of(found[0]).shape == (2, 1, 8, 8)
    assert (labels_of(found[1])[:, 1] == -1).all()
    torch.testing.assert_close(R(found[1]).sum(1), R(b.channels[[0, 2, 4, 6, 8]]).sum(1))
    again = nrm.coarsen(R, a.channels, clusters, k=2)
    torch.testing.assert_close(R(again[1]).sum(1), torch.ones(2))
    single = nrm.coarsen(R.sample(1), a.channels, clusters, k=2)
    torch.testing.assert_close(R.sample(1)(single[1]), R(again[1])[1:])


def test_silent_blocks_are_in_the_weakest_group() -> None:
    table = torch.zeros(1, 8, 5)
    table[:, :5, :] = torch.rand(5, 5) + torch.eye(5)
    rows = torch.from_numpy(_grouped([table[0]], 3)[0])
    mass = torch.zeros(3, dtype=table.dtype).index_add(0, rows, table[0].sum(1))
    assert len(set(rows[5:].tolist())) == 1
    assert int(rows[5]) == int(mass.argmin())


class Parallel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 2)
        self.ra, self.rb = nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.ra(self.a(x)) + self.rb(self.b(x)))


def test_layers_that_no_walk_passes_together_are_refused() -> None:
    R = nrm.measure(Parallel(), torch.rand(1, 4))
    with pytest.raises(nrm.QuestionError, match="no relevance passes through both ra and rb"):
        nrm.coarsen(R, R["ra"].channels, R["rb"].channels)


# Against other groupings


def by_rank(share: Tensor, k: int) -> Tensor:
    """Blocks in order of relevance, k groups of equal size."""
    rank = share.abs().argsort(descending=True).argsort()
    return (rank * k // len(share))[None]


def by_mass(share: Tensor, k: int) -> Tensor:
    """Blocks in order of relevance, k groups of equal absolute relevance."""
    order = share.abs().argsort(descending=True)
    total = share.abs()[order].cumsum(0) / share.abs().sum()
    return (total * k).long().clamp(max=k - 1)[order.argsort()][None]


def assert_best(R: nrm.Measure, parts: list[nrm.Partition], k: int, factor: float) -> None:
    found = nrm.coarsen(R, *parts, k=k)
    for sample, i in itertools.product(range(len(R)), range(len(parts) - 1)):
        table = R(parts[i], parts[i + 1])[sample : sample + 1]
        shares = [table[0].sum(1), table[0].sum(0)]
        others = [[group(share, k) for share in shares] for group in (by_rank, by_mass)]
        others += [[torch.randint(k, (1, len(share))) for share in shares] for _ in range(5)]
        assert float(found.kept[sample, i]) > factor * max(float(_share_kept(table, *pair)) for pair in others)


@pytest.mark.parametrize("rules", ["lrp-0", "epsilon-plus"])
def test_groups_beat_other_groupings_on_small_networks(rules: str) -> None:
    R = dense(rules)
    assert_best(R, [R["1"].channels, R["3"].channels], 4, 1.2)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("rules", ["epsilon-plus-flat", "epsilon-gamma-box"])
def test_groups_beat_other_groupings_on_vgg16(rules: str, shared: Callable[[str], Path]) -> None:
    photos = sorted((shared("imagenette") / "val").iterdir())
    model = models.load("VGG16-Imagenette", shared("vgg16-imagenette/vgg16_imagenette.safetensors").parents[1])
    R = nrm.measure(model, models.photo(min(photos[4].iterdir()))[None], rules=rules)
    assert_best(R, [R[f"features.{i}"].channels for i in (24, 26, 28)], 8, 3.0)


def test_blocks_are_merged_by_hand() -> None:
    R = nrm.measure(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), torch.rand(3, 4))
    a = R["1"]
    joined, shares = R(nrm.merge(R, a.channels, [4, 1], [5, 2, 3])), R(a.channels)
    expected = torch.stack([shares[:, 0], shares[:, [1, 4]].sum(1), shares[:, [2, 3, 5]].sum(1)], 1)
    torch.testing.assert_close(joined, expected)
    for wrong in ([], [1, 1], [6], [-1]):
        with pytest.raises(nrm.QuestionError, match="not a group"):
            nrm.merge(R, a.channels, wrong)
    with pytest.raises(nrm.QuestionError, match="each in one group"):
        nrm.merge(R, a.channels, [1, 2], [2, 3])

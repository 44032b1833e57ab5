"""RelMax over a data set is the sorting of all scores; its statistics are those of all shares."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import nrm
from jobs.shop import A, B, Flowing, Squares, network, truth

PAIRS = (A.channels, B.channels)


def best(scores: torch.Tensor, k: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: (-float(scores[i]), i))[:k]


@pytest.mark.parametrize("weight", ["logit", "softmax", "none"])
def test_the_best_samples_are_those_of_a_loop(weight: str) -> None:
    data = Squares(40)
    found = nrm.relmax(network(), data, A.channels, PAIRS, B.channel(2), k=6, weight=weight, batch_size=7)
    for question, sets in (
        (A.channels, [(A.channel(i),) for i in range(4)]),
        (PAIRS, [(A.channel(i), B.channel(j)) for i in range(4) for j in range(5)]),
        (B.channel(2), [(B.channel(2),)]),
    ):
        scores = truth(question, data.x, weight=weight)
        for column, blocks in enumerate(sets):
            hits = found.top(*blocks)
            assert hits.complete
            torch.testing.assert_close(
                torch.tensor(hits.scores),
                scores[:, column].sort(descending=True).values[:6].float(),
                rtol=1e-4,
                atol=1e-6,
            )
            assert len(set(hits.samples)) == 6
            assert hits.samples == best(scores[:, column], 6) or weight  # near ties may swap
    assert found.top(B.channel(3), A.channel(1)).samples == found.top(A.channel(1), B.channel(3)).samples
    assert found.count == 40
    assert found.errors == []


def test_activations_and_places() -> None:
    data = Squares(30)
    found = nrm.relmax(network(), data, A.channels, k=5, batch_size=8)
    R = nrm.measure(network(), data.x)
    values, shares = R.values(A), R(A)
    for channel in range(4):
        hits = found.top(A.channel(channel), by="activation")
        assert hits.samples == best(values[:, channel].flatten(1).amax(1), 5)
        for hit in hits:
            assert hit.place is not None
            assert float(values[(hit.sample, *hit.place)]) == pytest.approx(hit.score, rel=1e-5)
        for hit in found.top(A.channel(channel)):
            assert hit.place is not None
            assert hit.place[0] == channel
            top = shares[hit.sample, channel].max()
            assert float(shares[(hit.sample, *hit.place)]) == pytest.approx(float(top), rel=1e-3, abs=1e-7)


def test_places_of_negative_outputs() -> None:
    """A share of a negative output counts the other way: the peak has the largest score, not the largest share."""
    data, model = Squares(30), network()
    R = nrm.measure(model, data.x, target=(lowest := int(model(data.x).amin(0).argmin())))
    assert float(R.value.min()) < 0
    pair = (A.channel(1), B.channel(2))
    found = nrm.relmax(model, data, A.channels, pair, k=30, target=lowest)
    alone, both = (R(*parts) * R.value.view(-1, 1, 1, 1) for parts in ((A,), (B, *pair)))
    for scores, hits, channel in ((alone, found.top(A.channel(1)), 1), (both, found.top(*pair), 2)):
        for hit in hits:
            best = scores[hit.sample, channel].max()
            assert float(scores[(hit.sample, *hit.place)]) == pytest.approx(float(best), rel=1e-3, abs=1e-6)


def test_targets_labels_and_statistics() -> None:
    data = Squares(30)
    labels = torch.arange(30) % 3
    shares = nrm.measure(network(), data.x, target=labels)(*PAIRS).double()
    for targets in ("label", labels, labels.tolist()):
        found = nrm.relmax(network(), data, PAIRS, target=targets, k=3, batch_size=4)
        hit = found.top(A.channel(0), B.channel(0))[0]
        assert hit.label == hit.target == hit.sample % 3
        whole = found.statistics(*PAIRS)
        torch.testing.assert_close(whole["mean"], shares.mean(0), rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(whole["variance"], shares.var(0), rtol=1e-3, atol=1e-7)
        one = found.statistics(*PAIRS, target=2)
        assert one["count"] == 10
        torch.testing.assert_close(one["mean"], shares[labels == 2].mean(0), rtol=1e-4, atol=1e-7)
        at, value = found.best(*PAIRS, k=2, target=2)[0]
        assert value == pytest.approx(float(shares[labels == 2].mean(0).max()), rel=1e-4)
        assert float(shares[labels == 2].mean(0)[at]) == pytest.approx(value, rel=1e-4)
        assert found.classes() == [0, 1, 2]


def test_pairs_without_room_say_so() -> None:
    data = Squares(40)
    full = nrm.relmax(network(), data, PAIRS, k=6, batch_size=5)
    few = nrm.relmax(network(), data, PAIRS, k=6, batch_size=5, rows=60)
    complete = 0
    for i in range(4):
        for j in range(5):
            block = (A.channel(i), B.channel(j))
            kept, known = few.top(*block), full.top(*block)
            assert kept.samples == known.samples[: len(kept)]
            if kept.complete:
                assert kept.samples == known.samples
                complete += 1
            else:
                assert "nrm.relmax(model, dataset, (nrm.layer('1').channel" in str(kept)
                pruned = block
    assert 0 < complete < 20
    alone = nrm.relmax(network(), data, pruned, k=6, batch_size=5)
    assert alone.top(*pruned).samples == full.top(*pruned).samples
    assert sum(len(few.top(A.channel(i), B.channel(j))) for i in range(4) for j in range(5)) == 60


def same(one: Any, other: Any) -> bool:
    first, second = one.tally, other.tally
    return first.samples == second.samples and all(
        (getattr(first.tops[key], name) == getattr(second.tops[key], name)).all()
        for key in first.tops
        for name in ("block", "sample", "score", "place")
    )


@pytest.mark.parametrize("shard_size", [4, 12, 1000])
def test_shards_and_kinds_of_data_sets_make_no_difference(shard_size: int) -> None:
    data = Squares(30)
    expected = nrm.relmax(network(), data, A.channels, PAIRS, k=5, batch_size=4, shard_size=500)
    sources = [data, Flowing(data), iter([data[i] for i in range(30)]), TensorDataset(data.x, torch.arange(30) % 3)]
    for source in sources:
        found = nrm.relmax(network(), source, A.channels, PAIRS, k=5, batch_size=4, shard_size=shard_size)
        assert same(found, expected)
        torch.testing.assert_close(
            found.statistics(*PAIRS)["variance"], expected.statistics(*PAIRS)["variance"], rtol=1e-10, atol=0
        )
    bare = nrm.relmax(network(), data.x, A.channels, PAIRS, k=5, batch_size=4, shard_size=shard_size)
    assert bare.top(A.channel(0)).samples == expected.top(A.channel(0)).samples


def test_bad_samples_are_left_out_and_listed() -> None:
    data = Squares(30, bad=(3, 17), broken=(8,))
    found = nrm.relmax(network(), data, A.channels, k=30, batch_size=4, max_errors=3)
    assert [number for number, _ in found.errors] == [3, 8, 17]
    assert "truncated" in dict(found.errors)[8]
    assert found.count == 27
    assert sorted(found.top(A.channel(0)).samples) == [i for i in range(30) if i not in (3, 8, 17)]
    with pytest.raises(nrm.NrmError, match="3 samples failed"):
        nrm.relmax(network(), data, A.channels, max_errors=2)
    with pytest.raises(nrm.NrmError, match="at most 0 bad samples"):
        nrm.relmax(network(), data, A.channels)


def test_formulas_are_questions() -> None:
    data = Squares(12)
    event = nrm.visits(A.channel(1)) & ~nrm.visits(B.channel(2))
    found = nrm.relmax(network(), data, event, (event, A.channels), k=3, weight="none")
    shares = nrm.measure(network(), data.x)(event)
    hits = found.top(event)
    assert hits.samples == best(shares, 3)
    assert found.statistics(event)["mean"].item() == pytest.approx(float(shares.double().mean()), rel=1e-4)
    assert len(found.top(event, A.channel(1))) == 3


def test_equal_samples_come_in_their_order() -> None:
    x = torch.rand(1, 1, 10, 10).expand(12, 1, 10, 10)
    found = nrm.relmax(network(), x, A.channels, k=4, batch_size=12)
    assert found.top(A.channel(0)).samples == [0, 1, 2, 3]


def test_bad_requests() -> None:
    data = Squares(6)
    with pytest.raises(nrm.QuestionError, match="nothing was asked"):
        nrm.relmax(network(), data)
    with pytest.raises(nrm.QuestionError, match="unknown layer"):
        nrm.relmax(network(), data, nrm.layer("conv9").channels)
    with pytest.raises(nrm.QuestionError, match="unknown weight"):
        nrm.relmax(network(), data, A.channels, weight="logits")
    with pytest.raises(nrm.QuestionError, match="not a data set"):
        nrm.relmax(network(), 3, A.channels)
    with pytest.raises(nrm.QuestionError, match=r"(?s)a loader gives batches.*loader\.dataset"):
        nrm.relmax(network(), torch.utils.data.DataLoader(data, batch_size=3), A.channels)
    with pytest.raises(nrm.QuestionError, match="no samples"):
        nrm.relmax(network(), [], A.channels)
    with pytest.raises(nrm.QuestionError, match="targets and samples"):
        nrm.relmax(network(), data, A.channels, target=[1, 2])
    found = nrm.relmax(network(), data, A.channels, PAIRS, k=3)
    with pytest.raises(nrm.QuestionError, match="did not ask this"):
        found.top(B.channel(0))
    with pytest.raises(nrm.QuestionError, match="no such block"):
        found.top(A.channel(4))
    with pytest.raises(nrm.QuestionError, match="not so many"):
        found.top(A.channel(1), k=4)
    with pytest.raises(nrm.QuestionError, match="no activation"):
        found.top(A.channel(1), B.channel(1), by="activation")


PETS = {"output": ["cat", "dog", "eel"]}


def test_a_folder_of_images(tmp_path: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(3):
            pixels = (torch.rand(10, 10) * 255).byte().numpy()
            image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    (tmp_path / "dog" / "3.png").write_bytes(b"\x89PNG broken")

    def change(picture: Any) -> torch.Tensor:
        return torch.tensor(list(picture.convert("L").tobytes())).view(1, 10, 10) / 255

    found = nrm.relmax(
        network(), tmp_path, A.channels, transform=change, k=6, target="label", max_errors=1, labels=PETS
    )
    assert [number for number, _ in found.errors] == [6]
    assert {hit.label for hit in found.top(A.channel(0))} == {0, 1}
    with pytest.raises(nrm.QuestionError, match="transform"):
        nrm.relmax(network(), tmp_path, A.channels)


def test_it_agrees_with_the_recipe() -> None:
    data = Squares(30)
    for question in ((A.channels,), PAIRS):
        job = nrm.relmax(network(), data, question, k=6, batch_size=5)
        recipe = nrm.methods.relmax(network(), data, *question, k=6, batch_size=5)
        for block in range(recipe.samples[..., 0].numel()):
            rows = job.tally.tops[0, "relevance"].of_block(block)
            assert rows.sample.tolist() == recipe.samples.reshape(-1, 6)[block].tolist()
            assert rows.score.tolist() == recipe.scores.reshape(-1, 6)[block].double().tolist()

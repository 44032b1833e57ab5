"""Pairs of inputs with answers: what is explained of them, batches, halves, the accuracy of a model."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

import nrm
from nrm.errors import InputError, NrmWarning, QuestionError
from nrm.tasks import PairBatch, Pairs, TaskPair


class Table(nn.Module):
    """Logits that are looked up by token, at every position."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(logits)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table[ids]


class Small(nn.Module):
    """Embedded tokens, mixed along positions, and a hidden layer: enough for a contrast."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(7, 6), nn.Linear(6, 9), nn.Linear(9, 7)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).cumsum(1)
        return self.down(torch.tanh(self.up(x)))


def drawn(lengths: list[int], sets: list[tuple[int, int]], seed: int = 0) -> Pairs:
    """Pairs of random tokens, right answers and wrong ones as many as said."""
    random = torch.Generator().manual_seed(seed)
    items = []
    for n, (length, (a, w)) in enumerate(zip(lengths, sets, strict=True)):
        clean = torch.randint(7, (length,), generator=random)
        answers = torch.randperm(7, generator=random).tolist()
        items.append(TaskPair(clean, (clean + 1 + n % 3) % 7, tuple(answers[:a]), tuple(answers[a : a + w])))
    return Pairs(tuple(items))


CASES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=12)


@given(CASES, st.integers(1, 5))
def test_batches_have_every_pair_once_and_explain_the_log_odds(cases: list[tuple[int, int, int]], size: int) -> None:
    pairs = drawn([c[0] for c in cases], [(c[1], c[2]) for c in cases])
    model = Table(torch.randn(7, 7, dtype=torch.float64))
    batches = pairs.by_length(size)
    assert sorted(n for b in batches for n in b.rows) == list(range(len(pairs)))
    for batch in batches:
        assert 1 <= len(batch) <= size
        for n, odds in zip(batch.rows, batch.odds(model(batch.clean)), strict=True):
            logits = model.table[pairs[n].clean[-1]]
            want = logits[list(pairs[n].answers)].exp().sum().log()
            if pairs[n].wrong:
                want = want - logits[list(pairs[n].wrong)].exp().sum().log()
            torch.testing.assert_close(odds, want)


@pytest.mark.parametrize("sets", [(1, 1), (3, 2), (2, 0)])
def test_odds_are_what_a_contrast_explains(sets: tuple[int, int]) -> None:
    model, pairs = Small().double(), drawn([4, 4, 4], [sets] * 3)
    (batch,) = pairs.by_length()
    R = nrm.measure(model, batch.clean, against=batch.corrupted, output=batch.odds)
    want = batch.odds(model(batch.clean)) - batch.odds(model(batch.corrupted))
    torch.testing.assert_close(R.value, want)
    torch.testing.assert_close(R(R.input.positions).sum(1), torch.ones(3, dtype=torch.float64))


def components(edges: list[tuple[int, int]]) -> list[int]:
    """How many edges the connected parts of a graph have, by labels that spread until nothing changes."""
    label = {v: v for edge in edges for v in edge}
    for _ in label:
        for a, b in edges:
            label[a] = label[b] = min(label[a], label[b])
    return [sum(label[a] == part for a, _ in edges) for part in set(label.values())]


def subsets(sizes: list[int]) -> list[tuple[int, ...]]:
    return [some for n in range(len(sizes) + 1) for some in itertools.combinations(sizes, n)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30), st.integers(0, 5))
def test_halves_have_no_input_in_common(ends: list[tuple[int, int]], seed: int) -> None:
    items = tuple(TaskPair(torch.tensor([a]), torch.tensor([b]), (n,)) for n, (a, b) in enumerate(ends) if a != b)
    pairs = Pairs(items)
    sizes = components([(a, b) for a, b in ends if a != b])
    if not any(sum(some) >= 2 and sum(sizes) - sum(some) >= 1 for some in subsets(sizes)):
        with pytest.raises(InputError, match="not enough pairs"):
            pairs.split(2, 1, seed=seed)
        return
    one, other = pairs.split(2, 1, seed=seed)
    assert (len(one), len(other)) == (2, 1)
    seen = [{int(t) for p in part for t in (p.clean, p.corrupted)} for part in (one, other)]
    assert not seen[0] & seen[1]
    again = pairs.split(2, 1, seed=seed)
    assert [p.answers for part in again for p in part] == [p.answers for part in (one, other) for p in part]


def test_seeds_draw_other_halves() -> None:
    pairs = Pairs.of(torch.arange(50).view(50, 1), torch.arange(50, 100).view(50, 1), range(50))
    drawn_by = [frozenset(p.answers for p in pairs.split(20, 12, seed=seed)[0]) for seed in range(3)]
    assert len(set(drawn_by)) == 3
    assert [len(part) for part in pairs.split()] == [20, 12]


def test_accuracy_is_printed_and_failure_warned_of() -> None:
    logits = torch.zeros(4, 4)
    logits[torch.arange(4), torch.arange(4)] = 2.0  # every token predicts itself
    clean = torch.tensor([[0, 1], [0, 2], [0, 3], [1, 0]])
    corrupted = torch.tensor([[0, 2], [0, 3], [0, 1], [1, 1]])
    good = Pairs.of(clean, corrupted, [1, 2, 3, 0], [2, 3, 1, 1]).accuracy(Table(logits))
    assert repr(good) == "accuracy 1.00 on 4 pairs, mean log-odds +2.00 clean, -2.00 corrupted"
    assert float(good) == 1.0
    assert good.is_enough
    enough = Pairs.of(clean, corrupted, [1, 2, 3, 1], [2, 3, 1, 0]).accuracy(Table(logits))
    assert float(enough) == 0.75
    with pytest.warns(NrmWarning, match=r"fails this task.*accuracy 0.50 on 4 pairs"):
        Pairs.of(clean, corrupted, [1, 2, 1, 1], [2, 3, 3, 0]).accuracy(Table(logits))


def test_without_wrong_answers_the_largest_logit_decides() -> None:
    logits = torch.eye(3)
    pairs = Pairs.of(torch.tensor([[0], [1], [2], [0]]), torch.tensor([[1], [2], [0], [2]]), [0, 1, 2, [1, 0]])
    assert float(pairs.accuracy(Table(logits))) == 1.0
    with pytest.warns(NrmWarning, match="accuracy 0.67 on 3 pairs"):
        Pairs.of(torch.tensor([[0], [1], [2]]), torch.tensor([[1], [2], [0]]), [0, 1, 0]).accuracy(Table(logits))


def test_images_are_pairs() -> None:
    images = torch.rand(3, 1, 8, 8)
    pairs = Pairs.of(images, nrm.reference("blur", images), torch.tensor([0, 1, 1]), name="digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    (batch,) = pairs.by_length()
    R = nrm.measure(model, batch.clean, against=batch.corrupted, output=batch.odds)
    twin = model(nrm.reference("blur", images))
    torch.testing.assert_close(R.value, (model(images) - twin)[range(3), [0, 1, 1]])
    assert "3 pairs of digits, shape (1, 8, 8)" in repr(pairs)


def test_pairs_are_values() -> None:
    pairs = drawn([2, 3, 2], [(1, 1)] * 3)
    assert [len(p.clean) for p in pairs[:2]] == [2, 3]
    assert isinstance(pairs[:2], Pairs)
    assert pairs.take([2, 0])[0] is pairs[2]
    assert pairs.fingerprint == drawn([2, 3, 2], [(1, 1)] * 3).fingerprint
    others = [drawn([2, 3, 2], [(1, 1)] * 3, seed=1), pairs[:2], drawn([2, 3, 2], [(1, 1), (1, 1), (1, 0)])]
    assert len({pairs.fingerprint, *(p.fingerprint for p in others)}) == 4


T = torch.tensor
BAD = [
    (lambda: Pairs.of(T([[1, 2]]), T([[1, 2, 3]]), [0]), r"different lengths\n.*pair 0\n.*clean 2 tokens, corrupted 3"),
    (lambda: Pairs.of(T([[1, 2]]), T([[1, 2]]), [0]), "are equal"),
    (lambda: Pairs.of(T([[1, 2]]), T([[2, 2]]), [[]]), "no answer"),
    (lambda: Pairs.of(T([[1, 2]]), T([[2, 2]]), [3], [3]), r"right and wrong\n.*\n.*\[3\]"),
    (lambda: Pairs.of(T([[1, 2]]), T([[2, 2]]), [3, 4]), "answers and inputs do not match"),
    (lambda: Pairs.of(T([[1, 2]]), T([[2, 2], [1, 1]]), [3]), "are no pairs"),
    (lambda: Pairs.of(T([[1, 2]]), T([[2, 2]]), [3]).split(), r"not enough pairs(.|\n)*20 to score and 12 to judge"),
]


@pytest.mark.parametrize(("make", "text"), BAD)
def test_bad_pairs_are_refused(make: object, text: str) -> None:
    with pytest.raises(InputError, match=text):
        make()  # type: ignore[operator]


def test_a_model_without_logits_is_refused() -> None:
    batch = PairBatch(T([[1]]), T([[2]]), T([[0]]), T([[1]]), (0,))
    with pytest.raises(QuestionError, match="does not return logits"):
        batch.odds(("nothing",))

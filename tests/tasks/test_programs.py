"""Known programs: their true edges by patching every edge alone, and what the contrast of their pairs makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.errors import InputError, QuestionError
from nrm.tasks import FELT, PairBatch, Program, SmallTransformer, programs

PROGRAMS = programs()
ENOUGH = 0.95


class Hooked:
    """A small transformer with plain torch hooks: what writers write, and readers that read something else."""

    def __init__(self, model: SmallTransformer) -> None:
        self.model, self.width = model, model.size.head_width

    def part(self, name: str) -> tuple[Any, slice]:
        """The module that a writer or reader is, and its channels: those of its head."""
        path, _, head = name.partition(".head(")
        module = self.model.get_submodule({"output": "unembed"}.get(path, path))
        n = int(head[:-1]) if head else 0
        return module, slice(n * self.width, (n + 1) * self.width) if head else slice(None)

    @contextmanager
    def hooked(self, module: nn.Module, hook: Callable[..., Any], before: bool) -> Iterator[None]:
        handle = module.register_forward_pre_hook(hook) if before else module.register_forward_hook(hook)
        yield
        handle.remove()

    def written(self, name: str, ids: Tensor) -> Tensor:
        """What a writer adds to the stream."""
        module, channels = self.part(name)
        seen: list[Tensor] = []
        if "head(" in name:
            with self.hooked(module.o, lambda _, given: seen.append(given[0]), before=True):
                self.model(ids)
            written: Tensor = seen[0][..., channels] @ module.o.weight[:, channels].T
            return written
        with self.hooked(module, lambda _, given, result: seen.append(result), before=False):
            self.model(ids)
        return seen[0]

    def answers(self, batch: PairBatch, reader: str, changes: Tensor) -> Tensor:
        """The log-odds ``(changes, pairs)`` of the clean run in which a reader reads the stream with a change."""
        module, channels = self.part(reader)
        ids, rows = batch.clean.repeat(len(changes), 1), changes.flatten(0, 1)
        copy = nn.Linear(module.in_features, module.out_features, bias=False) if "head(" in reader else None

        def moved(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
            return (given[0] + rows,)

        def exchanged(_: nn.Module, given: tuple[Tensor], result: Tensor) -> Tensor:
            assert copy is not None
            copy.weight = module.weight  # a copy, as asking the module itself would ask this hook again
            found = result.clone()
            found[..., channels] = copy(given[0] + rows)[..., channels]
            return found

        with self.hooked(module, exchanged if copy is not None else moved, before=copy is None):
            logits = self.model(ids)[:, -1].unflatten(0, changes.shape[:2])
        right, wrong = (side[None].expand(len(changes), -1, -1) for side in (batch.answers, batch.wrong))
        odds: Tensor = (logits.gather(2, right) - logits.gather(2, wrong))[..., 0]
        return odds


def batch_of(program: Program, count: int = 12, seed: int = 0) -> PairBatch:
    (batch,) = program.pairs(count, seed).by_length(count)
    return batch


def contrast(program: Program, batch: PairBatch) -> Any:
    return nrm.measure(program.model, batch.clean, against=batch.corrupted, output=batch.odds)


def edge_names(program: Program) -> list[tuple[str, str]]:
    """All edges of a small transformer, written down from its sizes: writers are below their readers."""
    model = program.model
    assert isinstance(model, SmallTransformer)
    heads = range(model.size.heads)
    written, found = ["embed"], []
    for b in range(model.size.blocks):
        found += [(w, f"blocks.{b}.attn.{x}.head({h})") for w in written for x in "qkv" for h in heads]
        written += [f"blocks.{b}.attn.head({h})" for h in heads]
        found += [(w, f"blocks.{b}.mlp") for w in written]
        written.append(f"blocks.{b}.mlp")
    return found + [(w, "output") for w in written]


def by_reader(program: Program) -> dict[str, list[str]]:
    """For every reader the writers below it."""
    found: dict[str, list[str]] = {}
    for writer, reader in edge_names(program):
        found.setdefault(reader, []).append(writer)
    return found


@torch.no_grad()
def changes_of(program: Program, batch: PairBatch) -> dict[str, Tensor]:
    """What the corruption changes of what every writer writes."""
    hooked = Hooked(program.model)  # type: ignore[arg-type]
    writers = {writer for writer, _ in edge_names(program)}
    return {w: hooked.written(w, batch.corrupted) - hooked.written(w, batch.clean) for w in writers}


@torch.no_grad()
def effects(program: Program, batch: PairBatch) -> dict[tuple[str, str], float]:
    """What every edge alone changes, of some pair the most, as a share of what the whole corruption changes."""
    hooked, changes = Hooked(program.model), changes_of(program, batch)  # type: ignore[arg-type]
    clean, corrupted = (batch.odds(program.model(ids)) for ids in (batch.clean, batch.corrupted))
    found = dict[tuple[str, str], float]()
    for reader, writers in by_reader(program).items():
        answers = hooked.answers(batch, reader, torch.stack([changes[w] for w in writers]))
        shares = ((clean - answers) / (clean - corrupted)).abs().amax(1).tolist()
        found |= {(w, reader): share for w, share in zip(writers, shares, strict=True)}
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_true_edges_are_those_that_change_the_answer_alone(program: Program) -> None:
    batch = batch_of(program)
    table = contrast(program, batch).direct()
    true, possible = program.truth(table)
    names = [[(str(w), str(r)) for r in table.readers] for w in table.writers]
    every = {names[i][j] for i, j in possible.nonzero().tolist()}
    found = effects(program, batch)
    assert every == set(found)
    assert {names[i][j] for i, j in true.nonzero().tolist()} == set(program.edges)
    felt = {edge for edge, effect in found.items() if effect > FELT}
    least, most = (pick(found[e] for e in found if (e in program.edges) == side) for pick, side in ((min, 1), (max, 0)))
    print(f"{program.name}: true edges change {least:.2f} or more, others {most:.3f} or less")
    assert felt == set(program.edges)
    assert least > 3 * most
    assert most > 0.001, "decoys that nobody feels are no test"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_the_model_does_what_the_program_says(program: Program) -> None:
    pairs = program.pairs(60, seed=1)
    accuracy = pairs.accuracy(program.model)
    assert accuracy.share == 1
    assert accuracy.clean > 3 > -3 > accuracy.corrupted
    again = program.pairs(60, seed=1)
    assert again.fingerprint == pairs.fingerprint != program.pairs(60, seed=2).fingerprint


def by_gradient(program: Program, batch: PairBatch) -> dict[tuple[str, str], float]:
    """What the corruption changes of a writer times the gradient at the reader in the clean run, by autograd."""
    hooked, changes = Hooked(program.model), changes_of(program, batch)  # type: ignore[arg-type]
    found = dict[tuple[str, str], float]()
    for reader, writers in by_reader(program).items():
        still = torch.zeros_like(changes["embed"])[None].requires_grad_()
        (slope,) = torch.autograd.grad(hooked.answers(batch, reader, still).sum(), still)
        found |= {(w, reader): abs(float((slope[0] * changes[w]).sum())) for w in writers}
    return found


def test_the_contrast_finds_true_edges() -> None:
    worst = 1.0
    for program in PROGRAMS:
        batch = batch_of(program)
        table = contrast(program, batch).direct()
        score = program.auroc(table)
        slopes = by_gradient(program, batch)
        rows = [[slopes.get((str(w), str(r)), 0.0) for r in table.readers] for w in table.writers]
        other = program.auroc(table, torch.tensor(rows))
        print(
            f"{program.name:9}  {len(program.edges)} of {len(table)} edges, AUROC {score:.3f}, by gradient {other:.3f}"
        )
        worst = min(worst, other)
        assert score >= ENOUGH
    assert worst < ENOUGH, "scores that are too easy to get right say nothing"


@pytest.mark.parametrize("count", [0, -1])
def test_no_pairs(count: int) -> None:
    with pytest.raises(InputError, match="no pairs are asked for"):
        PROGRAMS[0].pairs(count)


def test_a_program_prints_itself_and_knows_its_edges() -> None:
    for program in PROGRAMS:
        assert program.what
        assert repr(program).count(" -> ") == len(program.edges) == len(set(program.edges))
    first, last = PROGRAMS[0], PROGRAMS[-1]
    table = contrast(first, batch_of(first)).direct()
    with pytest.raises(QuestionError, match="the edges are not those of 'crowded'"):
        last.auroc(table)


def test_weights_are_always_the_same_and_random_numbers_of_others_stay() -> None:
    torch.manual_seed(3)
    want = torch.rand(2)
    torch.manual_seed(3)
    again = programs()
    assert torch.equal(torch.rand(2), want)
    for one, other in zip(PROGRAMS, again, strict=True):
        states = one.model.state_dict(), other.model.state_dict()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_true_edges_alone_do_the_task(program: Program) -> None:
    R = contrast(program, batch_of(program))
    true, possible = program.truth(R.direct())
    alone = replace(R.circuit(top=1), inside=true)
    found, without = (nrm.evaluate.patch(R, one) for one in (alone, replace(alone, inside=possible & ~true)))
    print(f"{program.name}: true edges alone bring back {found.f:.3f}, predicted {found.mass:.3f}; "
          f"all others {without.f:.3f}, predicted {without.mass:.3f}")  # fmt: skip
    assert found.f == pytest.approx(1, abs=0.05)
    assert found.mass == pytest.approx(1, abs=0.05)
    assert abs(without.f) < 0.05


def test_hooks_and_patching_agree_edge_by_edge() -> None:
    program = next(p for p in PROGRAMS if p.name == "same")
    batch = batch_of(program)
    R, hooked, changes = contrast(program, batch), Hooked(program.model), changes_of(program, batch)  # type: ignore[arg-type]
    table, whole = R.direct(), R.circuit(top=1)
    _, possible = program.truth(table)
    for i, j in possible.nonzero()[::9].tolist():
        inside = possible.clone()
        inside[i, j] = False
        want = hooked.answers(batch, str(table.readers[j]), changes[str(table.writers[i])][None])[0]
        found = nrm.evaluate.patch(R, replace(whole, inside=inside))
        torch.testing.assert_close(found.values, want.detach(), rtol=1e-4, atol=1e-4)

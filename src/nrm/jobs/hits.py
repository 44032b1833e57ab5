"""What is told of blocks and of samples: lists that say whether something may be missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nrm.tables import Records


@dataclass(frozen=True)
class Hit:
    """One of the best samples of a block: its number, its score, and the neuron of the layer where the block peaks.

    A pair peaks at the neuron of its last layer that has most of the pair's relevance; jobs about whole tables of
    pairs leave that open, and :meth:`nrm.jobs.Crops.locate` finds it.
    """

    sample: int
    score: float
    place: tuple[int, ...] | None = None
    label: int | None = None
    target: int | None = None


@dataclass(frozen=True)
class Hits(Records, Sequence[Hit]):
    """The best samples of a block, best first.

    ``complete`` says that no other sample can belong there; ``note`` says why some may be missing, and what to do.
    """

    block: str
    by: str
    hits: tuple[Hit, ...]
    complete: bool
    note: str = ""

    def __getitem__(self, index: Any) -> Any:
        return self.hits[index]

    def __len__(self) -> int:
        return len(self.hits)

    @property
    def samples(self) -> list[int]:
        """The numbers of the samples."""
        return [hit.sample for hit in self.hits]

    @property
    def scores(self) -> list[float]:
        """Their scores."""
        return [hit.score for hit in self.hits]

    def records(self) -> list[dict[str, Any]]:
        """Every sample with its rank, its score, the neuron where the block peaks, its label and its target."""
        return [
            {"rank": rank, "sample": hit.sample, "score": hit.score, "place": hit.place, "label": hit.label,
             "target": hit.target}
            for rank, hit in enumerate(self.hits, 1)
        ]  # fmt: skip

    def _keys(self) -> Sequence[str]:
        return ("rank",)

    def _title(self) -> str:
        return f"the best samples for {self.block} by {self.by}" + (f"; {self.note}" if self.note else "")

    def __str__(self) -> str:
        rows = [f"  {rank:>3}  sample {hit.sample}  {hit.score:.4g}" + _where(hit)
                for rank, hit in enumerate(self.hits, 1)]  # fmt: skip
        return "\n".join(
            [f"the best samples for {self.block} by {self.by}", *rows, *([self.note] if self.note else [])]
        )

    __repr__ = __str__


@dataclass(frozen=True)
class LeadingBlocks(Records, Sequence[tuple[tuple[int, ...], float]]):
    """The blocks with the largest mean share, largest first: each is its index, and its mean.

    ``bounds`` are intervals that hold the true means, of no width where nothing was pruned. No other block has a mean
    above ``limit``. ``complete`` says that these are certainly the largest; ``note`` tells what was pruned.
    """

    indices: tuple[tuple[int, ...], ...]
    means: tuple[float, ...]
    bounds: tuple[tuple[float, float], ...]
    limit: float
    complete: bool
    note: str = ""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(self)[index]
        return self.indices[index], self.means[index]

    def __len__(self) -> int:
        return len(self.indices)

    def records(self) -> list[dict[str, Any]]:
        """Every block with its rank, its mean share, and the interval that holds it."""
        return [
            {"rank": rank, "block": index if len(index) > 1 else index[0] if index else None, "mean": mean, "low": low,
             "high": high}
            for rank, (index, mean, (low, high)) in enumerate(
                zip(self.indices, self.means, self.bounds, strict=True), 1)
        ]  # fmt: skip

    def _keys(self) -> Sequence[str]:
        return ("rank",)

    def _title(self) -> str:
        return "the blocks with the largest mean shares" + (f"; {self.note}" if self.note else "")

    def __str__(self) -> str:
        rows = []
        for (index, mean), (low, high) in zip(self, self.bounds, strict=True):
            interval = f"  ({low:.4g} to {high:.4g})" if low < high else ""
            rows.append(f"  {', '.join(map(str, index)):<12} {mean:.4g}{interval}")
        return "\n".join(["the blocks with the largest mean shares", *rows, *([self.note] if self.note else [])])

    __repr__ = __str__


def _where(hit: Hit) -> str:
    return "" if hit.place is None else f"  at {hit.place}"

"""Tallies as parquet tables, and back."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nrm.errors import ResultFileError
from nrm.extras import extra
from nrm.jobs.leading import ClassSums, Leading, TreePlace, first_sample, keys
from nrm.jobs.moments import ByClass
from nrm.jobs.tally import COLUMNS, Limits, Tally
from nrm.jobs.top import BlockRows

SAMPLES, TOP, STATISTICS, LEADERS = TABLES = (
    "samples.parquet", "top.parquet", "statistics.parquet", "leaders.parquet",
)  # fmt: skip
ROW_GROUP = 16_384
REPEATED = {"question", "ranking", "class", "count", "positive", "negative", "height", "node"}
SOUGHT = {"question", "ranking", "class", "block", "sample"}
ARRAYS = ("mean", "squares", "positive", "negative", "absolute")
BEST = ("block", "sample", "score", "place")


def write_tables(folder: Path, tally: Tally, *, to_stay: bool) -> None:
    """Writes a tally into a folder: sorted and compressed if it is to stay, else as quickly as can be."""
    with extra("store", "nrm.relmax with a store"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    best = {key: best.top().rows if to_stay else best.rows() for key, best in sorted(tally.best.items())}
    tables = (_samples_table(pa, tally), _top_table(pa, best), _statistics_table(pa, tally), _leading_table(pa, tally))
    for name, table in zip(TABLES, tables, strict=True):
        packed = {"row_group_size": ROW_GROUP, "compression": "zstd"} if to_stay else {"compression": "none"}
        repeated, sought = ([column for column in table.column_names if column in some] for some in (REPEATED, SOUGHT))
        pq.write_table(table, folder / name, use_dictionary=repeated, write_statistics=sought, **packed)


def _samples_table(pa: Any, tally: Tally) -> Any:
    kinds = dict(zip(COLUMNS, (*(pa.int64(),) * 4, pa.float64(), pa.float64(), pa.string()), strict=True))
    order = np.argsort(np.array(tally.samples["sample"], np.int64), kind="stable")
    return pa.table({name: pa.array([values[i] for i in order], kinds[name]) for name, values in tally.samples.items()})


def _top_table(pa: Any, best: dict[tuple[int, str], BlockRows]) -> Any:
    kinds = {"question": pa.int32(), "ranking": pa.string(), "block": pa.int64(), "sample": pa.int64(),
             "score": pa.float64(), "place": pa.int64()}  # fmt: skip
    pieces = [
        pa.table(
            {
                "question": np.full(len(rows), question, np.int32),
                "ranking": pa.repeat(by, len(rows)),
                **dict(zip(BEST, rows.columns, strict=True)),
            }
        )
        for (question, by), rows in best.items()
    ]
    return pa.concat_tables([pa.schema(kinds).empty_table(), *pieces])


def _statistics_table(pa: Any, tally: Tally) -> Any:
    kinds = {"question": pa.int32(), "class": pa.int64(), "block": pa.int64(), "count": pa.int64(),
             "mean": pa.float64(), "squares": pa.float64(), "positive": pa.int64(), "negative": pa.int64(),
             "absolute": pa.float64()}  # fmt: skip
    pieces = []
    for question, kept in enumerate(tally.moments):
        labels, counts, arrays = kept.sorted()
        if labels:
            size = arrays[0].shape[1]
            columns = {"question": np.full(len(labels) * size, question, np.int32), "class": np.repeat(labels, size),
                       "block": np.tile(np.arange(size), len(labels)), "count": np.repeat(counts, size)}  # fmt: skip
            values = {name: array.flatten().numpy() for name, array in zip(ARRAYS, arrays, strict=True)}
            pieces.append(pa.table(columns | values))
    return pa.concat_tables([pa.schema(kinds).empty_table(), *pieces])


def _leading_table(pa: Any, tally: Tally) -> Any:
    """Node by node; the row of block -1 bounds all blocks of its class that have none, and a node without samples has
    such a row only, with a count of 0.
    """
    kinds = {"question": pa.int32(), "height": pa.int32(), "node": pa.int64(), "class": pa.int64(), "block": pa.int64(),
             "count": pa.int64(), "total": pa.float64(), "under": pa.float64(), "over": pa.float64()}  # fmt: skip
    pieces = []
    for question, leading in tally.leading.items():
        for height, node in sorted(leading.nodes, key=first_sample):
            columns = _leading_columns(leading.nodes[height, node])
            size = len(columns["block"])
            place = {"question": np.full(size, question, np.int32), "height": np.full(size, height, np.int32),
                     "node": np.full(size, node)}  # fmt: skip
            pieces.append(pa.table(place | columns))
    return pa.concat_tables([pa.schema(kinds).empty_table(), *pieces])


def _leading_columns(sums: ClassSums | None) -> dict[str, Any]:
    if sums is None:
        nobody, zero = np.array([-1]), np.zeros(1)
        return {
            "class": nobody,
            "block": nobody,
            "count": np.zeros(1, np.int64),
            "total": zero,
            "under": zero,
            "over": zero,
        }
    rest = np.concatenate([np.zeros((1, len(sums.classes))), sums.rest])
    values = np.concatenate([rest, sums.values], 1)
    return {
        "class": np.concatenate([sums.classes, sums.labels]),
        "block": np.concatenate([np.full(len(sums.classes), -1), sums.blocks]),
        "count": np.concatenate([sums.counts, sums.counts[np.searchsorted(sums.classes, sums.labels)]]),
        **dict(zip(("total", "under", "over"), values, strict=True)),
    }


def read_tables(folder: Path, limits: Limits) -> Tally:
    """The tally that a folder holds."""
    samples, best = (read_table(folder / name) for name in (SAMPLES, TOP))
    tally = Tally(limits, {name: samples[name].to_pylist() for name in COLUMNS})
    rows = {name: best[name].to_numpy() for name in ("question", *BEST)}
    # Rows are written question by question, ranking by ranking.
    runs = best["ranking"].combine_chunks().dictionary_encode()
    rank, known = runs.indices.to_numpy(), runs.dictionary.to_pylist()
    for part in _runs(rows["question"], rank):
        some = BlockRows(*(rows[name][part] for name in BEST))
        tally.gather(int(rows["question"][part.start]), known[rank[part.start]]).take(some)
    for question, moments in _moments_of(read_table(folder / STATISTICS)):
        tally.moments[question] = moments
    for question, leading in tally.leading.items():
        read_leading(folder, question, leading)
    return tally


def _runs(*columns: Any) -> Iterator[slice]:
    """The rows with equal values in all columns, one run after the other."""
    changes = np.any([np.diff(column) != 0 for column in columns], axis=0)
    ends = [0, *(np.flatnonzero(changes) + 1).tolist(), len(columns[0])]
    return (slice(first, last) for first, last in itertools.pairwise(ends) if last > first)


def _moments_of(table: Any) -> Iterator[tuple[int, ByClass]]:
    """The statistics of every question in a table of them: written question by question, class by class."""
    columns = {name: table[name].to_numpy() for name in ("question", "class", "count", *ARRAYS)}
    for rows in _runs(columns["question"]):
        starts = [run.start for run in _runs(columns["class"][rows])]
        labels, counts = (columns[name][rows][starts].tolist() for name in ("class", "count"))
        arrays = [torch.from_numpy(columns[name][rows].reshape(len(labels), -1).copy()) for name in ARRAYS]
        yield int(columns["question"][rows.start]), ByClass.of(labels, counts, arrays)


def read_statistics(folder: Path, question: int) -> ByClass:
    """The statistics of one question in a folder."""
    found = dict(_moments_of(read_table(folder / STATISTICS, [("question", "=", question)])))
    return found.get(question, ByClass())


def read_leading(folder: Path, question: int, leading: Leading, label: int | None = None) -> None:
    """Counts in the leading blocks that a folder has of a question, of all classes or of one."""
    wanted = [("question", "=", question), *([] if label is None else [("class", "=", label)])]
    table = read_table(folder / LEADERS, wanted)
    columns = {name: table[name].to_numpy() for name in table.column_names}
    for part in _runs(columns["height"], columns["node"]):
        node: TreePlace = (int(columns["height"][part.start]), int(columns["node"][part.start]))
        leading.take(node, _sums({name: column[part] for name, column in columns.items()}))


def _sums(columns: dict[str, Any]) -> ClassSums | None:
    if not columns["count"].any():
        return None
    rest, rows = (np.flatnonzero(some) for some in (columns["block"] < 0, columns["block"] >= 0))
    values = np.stack([columns[name] for name in ("total", "under", "over")])
    key = keys(columns["class"][rows], columns["block"][rows])
    return ClassSums(columns["class"][rest], columns["count"][rest], values[1:, rest], key, values[:, rows])


def read_table(path: Path, filters: Any = None) -> Any:
    """A table, or some of its rows."""
    with extra("store", "the store of nrm.relmax"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        return pq.read_table(path, filters=filters, memory_map=False)
    except (OSError, pa.ArrowException) as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, got: str) -> ResultFileError:
    """What is said of a file that is not what was written."""
    return ResultFileError(
        "a part of the store is damaged", where=os.fspath(path), got=got[:200], expected="what a job wrote there",
        hint="run the job again with this store: damaged shards are done again",
    )  # fmt: skip

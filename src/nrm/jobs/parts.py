"""Parts of a store: the tally of some shards as a folder of parquet files, there as a whole or not at all."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from nrm.errors import JobError, ResultFileError
from nrm.extras import extra
from nrm.jobs.job import SCHEMA
from nrm.jobs.moments import ByClass
from nrm.jobs.tally import COLUMNS, Limits, Tally
from nrm.jobs.top import Rows, Top

FACTS = "part.json"
TABLES = ("samples.parquet", "top.parquet", "statistics.parquet")
TEMPORARY = ".writing-"
ROW_GROUP = 16_384
REPEATED = {"question", "ranking", "class", "count", "positive", "negative"}
SOUGHT = {"question", "ranking", "class", "block", "sample"}
ARRAYS = ("mean", "squares", "positive", "negative", "absolute")


class Span(NamedTuple):
    """The shards ``first`` to ``last - 1``."""

    first: int
    last: int

    @property
    def folder(self) -> str:
        """The name of the folder of such a part."""
        return f"{self.first:08d}-{self.last:08d}"

    @classmethod
    def read(cls, name: str) -> Span | None:
        """The span that a folder's name tells."""
        first, mark, last = name.partition("-")
        if not (mark and first.isdigit() and last.isdigit() and len(first) == len(last) == 8):
            return None
        return cls(int(first), int(last))


def write_part(folder: Path, span: Span, tally: Tally) -> None:
    """Writes a part under another name, flushes it to the disk, and renames it."""
    with writing(folder):
        temporary = folder / f"{TEMPORARY}{secrets.token_hex(8)}"
        try:
            temporary.mkdir()
            _write_tables(temporary, tally)
            facts = {
                "schema": SCHEMA,
                "files": {name: list(_seal(temporary / name)) for name in TABLES},
                "count": tally.count,
                "errors": tally.errors,
                "notes": tally.notes,
                "cuts": {f"{question} {by}": top.cut for (question, by), top in tally.tops.items() if _full(top)},
            }
            (temporary / FACTS).write_text(json.dumps(facts), encoding="utf-8")
            _seal(temporary / FACTS)
            _flush(temporary)
            if (folder / span.folder).exists():  # another worker was given the same shard, and was faster
                return
            temporary.rename(folder / span.folder)
            _flush(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """What cannot be written is one clear error."""
    try:
        yield
    except OSError as error:
        raise JobError(
            "the store cannot be written", where=os.fspath(place), got=str(error),
            expected="a folder with enough space that can be written to",
            hint="finished shards are safe: make room and run again, it goes on from there",
        ) from error  # fmt: skip


def _full(top: Top) -> bool:
    return bool(np.isfinite(top.cut))


def _seal(path: Path) -> tuple[int, str]:
    """Flushes a file to the disk; its size and digest."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        return path.stat().st_size, hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_tables(folder: Path, tally: Tally) -> None:
    with extra("store", "the store of nrm.relmax"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    kinds = dict(zip(COLUMNS, (*(pa.int64(),) * 4, pa.float64(), pa.float64(), pa.string()), strict=True))
    order = np.argsort(np.array(tally.samples["sample"], np.int64), kind="stable")
    samples = {name: pa.array([values[i] for i in order], kinds[name]) for name, values in tally.samples.items()}
    tables = (pa.table(samples), _top_table(pa, tally), _statistics_table(pa, tally))
    for name, table in zip(TABLES, tables, strict=True):
        repeated = [column for column in table.column_names if column in REPEATED]
        pq.write_table(
            table, folder / name, row_group_size=ROW_GROUP, compression="zstd", use_dictionary=repeated,
            write_statistics=[column for column in table.column_names if column in SOUGHT],
        )  # fmt: skip


def _top_table(pa: Any, tally: Tally) -> Any:
    kinds = {"question": pa.int32(), "ranking": pa.string(), "block": pa.int64(), "sample": pa.int64(),
             "score": pa.float64(), "place": pa.int64()}  # fmt: skip
    pieces = [
        pa.table(
            {
                "question": np.full(len(top), question, np.int32),
                "ranking": pa.repeat(by, len(top)),
                **{name: getattr(top, name) for name in ("block", "sample", "score", "place")},
            }
        )
        for (question, by), top in sorted(tally.tops.items())
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


def read_part(folder: Path, limits: Limits) -> Tally:
    """The tally that a part holds."""
    facts = read_facts(folder)
    tables = [_read_table(folder / name) for name in TABLES]
    tally = Tally(limits, {name: tables[0][name].to_pylist() for name in COLUMNS}, notes=facts["notes"])
    names = ("block", "sample", "score", "place")
    rows = {name: tables[1][name].to_numpy() for name in ("question", *names)}
    # Rows are written question by question, ranking by ranking.
    runs = tables[1]["ranking"].combine_chunks().dictionary_encode()
    rank, known = runs.indices.to_numpy(), runs.dictionary.to_pylist()
    ends = np.flatnonzero((np.diff(rows["question"]) != 0) | (np.diff(rank) != 0)) + 1
    for first, last in itertools.pairwise([0, *ends.tolist(), len(rank)]):
        if last > first:
            best = Rows(*(rows[name][first:last] for name in names))
            tally.gather(int(rows["question"][first]), known[rank[first]]).take(best)
    tally.moments = [moments_of(tables[2], question) for question in range(len(limits.per_class))]
    return tally


def moments_of(table: Any, question: int) -> ByClass:
    """The statistics of one question in a table of them."""
    columns = {name: table[name].to_numpy() for name in ("question", "class", "count", *ARRAYS)}
    mine = np.flatnonzero(columns["question"] == question)
    if not len(mine):
        return ByClass()
    rows = slice(mine[0], mine[-1] + 1)  # written question by question, class by class
    labels, first = np.unique(columns["class"][rows], return_index=True)
    arrays = [torch.from_numpy(columns[name][rows].reshape(len(labels), -1).copy()) for name in ARRAYS]
    return ByClass.of(labels.tolist(), columns["count"][rows][first].tolist(), arrays)


def read_statistics(folder: Path, question: int) -> ByClass:
    """The statistics of one question in a part."""
    return moments_of(_read_table(folder / TABLES[2], [("question", "=", question)]), question)


def _read_table(path: Path, filters: Any = None) -> Any:
    with extra("store", "the store of nrm.relmax"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        return pq.read_table(path, filters=filters, memory_map=False)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, str(error)) from error


def read_facts(folder: Path) -> dict[str, Any]:
    """What a part says of itself."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        schema = facts["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder / FACTS, str(error)) from error
    if schema != SCHEMA:
        raise ResultFileError("a part of another schema version", got=f"schema {schema}", expected=str(SCHEMA))
    assert isinstance(facts, dict)
    return facts


def check_part(folder: Path) -> None:
    """Refuses a part whose files are not what was written."""
    for name, (size, digest) in read_facts(folder)["files"].items():
        path = folder / name
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
            same = path.stat().st_size == size and found == digest
        except OSError as error:
            raise _damaged(path, str(error)) from error
        if not same:
            raise _damaged(path, "other content than was written")


def _damaged(path: Path, got: str) -> ResultFileError:
    return ResultFileError(
        "a part of the store is damaged", where=os.fspath(path), got=got[:200], expected="what a job wrote there",
        hint="run the job again with this store: damaged shards are done again",
    )  # fmt: skip

"""The store of a job: a manifest that says what job it is, and parts that are merged as they come."""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from nrm.errors import JobError, NrmError, NrmWarning, ResultFileError
from nrm.extras import extra
from nrm.files import begin, claim, differing, read_manifest
from nrm.jobs.job import READABLE, SCHEMA, Facts
from nrm.jobs.leading import ClassSums, Leading
from nrm.jobs.moments import ByClass
from nrm.jobs.parts import TEMPORARY, ShardSpan, check_part, read_facts, read_part, write_part, writing
from nrm.jobs.ranking import Ranking
from nrm.jobs.tables import LEADERS, TABLES, read_leading, read_statistics
from nrm.jobs.tally import GROUP, Limits, fold
from nrm.jobs.top import Top

MANIFEST, PARTS = "manifest.json", "parts"


class Shelf:
    """The files of a store: which shards are there, and how they become one part.

    A part that covers the shards of others takes their place. Shards are folded in fixed groups, then the groups, so
    that the result does not depend on who finished when.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path, self.limits = path, limits
        self.parts = path / PARTS

    def spans(self) -> list[ShardSpan]:
        """The parts that count, in the order of their shards; those inside of others do not."""
        found = sorted(filter(None, map(ShardSpan.read, _names(self.parts))), key=lambda s: (s.first, -s.last))
        kept: list[ShardSpan] = []
        for span in found:
            if not kept or span.last > kept[-1].last:
                kept.append(span)
        return kept

    def finished(self) -> set[int]:
        """The shards that are there."""
        return {shard for span in self.spans() for shard in range(*span)}

    def folder(self, span: ShardSpan) -> Path:
        """Where a part is."""
        return self.parts / span.folder

    def tidy(self) -> None:
        """Removes what a killed job left behind: half-written parts, parts inside of others, damaged ones."""
        kept = set(self.spans())
        for name in _names(self.parts):
            if name.startswith(TEMPORARY) or (ShardSpan.read(name) and ShardSpan.read(name) not in kept):
                shutil.rmtree(self.parts / name)
        for span in kept:
            try:
                check_part(self.folder(span))
            except ResultFileError as error:
                warnings.warn(f"{error}\nIts shards are done again.", NrmWarning, stacklevel=2)
                shutil.rmtree(self.folder(span))

    def fold_groups(self, shards: int | None) -> None:
        """Folds every group whose shards are all there."""
        single = {span.first for span in self.spans() if span.last == span.first + 1}
        for first in sorted({shard // GROUP * GROUP for shard in single}):
            last = first + GROUP if shards is None else min(first + GROUP, shards)
            if all(shard in single for shard in range(first, last)):
                self._fold([ShardSpan(shard, shard + 1) for shard in range(first, last)])

    def fold_all(self, shards: int) -> None:
        """Folds all groups into one part."""
        self.fold_groups(shards)
        self._fold(self.spans())

    def _fold(self, spans: Sequence[ShardSpan]) -> None:
        whole = ShardSpan(spans[0].first, spans[-1].last)
        if len(spans) == 1:
            return
        tally = fold(read_part(self.folder(span), self.limits) for span in spans)
        assert tally is not None
        write_part(self.parts, whole, tally, to_stay=True)
        for span in spans:
            shutil.rmtree(self.folder(span))


def _names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.is_dir() else []


@contextmanager
def claim_store(path: Path, facts: Facts, threads: int) -> Iterator[tuple[Shelf, int]]:
    """The store for this job alone: made, or found to belong to the same job. Gives the job's number of threads."""
    with claim_folder(path, facts, {"threads": threads}) as settings:
        with writing(path):
            (path / PARTS).mkdir(exist_ok=True)
        shelf = Shelf(path, _limits(facts))
        shelf.tidy()
        yield shelf, settings["threads"]


@contextmanager
def claim_folder(path: Path, facts: Facts, settings: dict[str, int]) -> Iterator[dict[str, int]]:
    """A folder with a manifest for this job alone. Gives the settings that the job was begun with."""
    with ExitStack() as claimed:
        with writing(path):
            claimed.enter_context(claim(path))
            begin(path / MANIFEST, {"schema": SCHEMA, "facts": facts, **settings})
        known = read_store(path)
        _refuse_other_job(known["facts"], facts, path)
        yield {name: known[name] for name in settings}


def is_finished(path: Path, facts: Facts) -> bool:
    """Whether a store has all shards of this job, whole and merged: then nothing has to be written.

    It may lie on a disk that cannot be written to. A store of another job is refused.
    """
    if not (path / MANIFEST).is_file() or facts["data"]["samples"] is None:
        return False
    _refuse_other_job(read_store(path)["facts"], facts, path)
    shelf = Shelf(path, _limits(facts))
    shards = math.ceil(facts["data"]["samples"] / facts["shard_size"])
    if shelf.spans() != [ShardSpan(0, shards)]:
        return False
    try:
        check_part(shelf.folder(ShardSpan(0, shards)))
    except ResultFileError:
        return False  # it is damaged: the job does it again, and says so
    return True


def _limits(facts: Facts) -> Limits:
    per_class = tuple(facts["per_class"])
    return Limits(facts["k"], facts["rows"], per_class, tuple(facts.get("leading", (0,) * len(per_class))))


def read_store(path: Path) -> dict[str, Any]:
    """The manifest of a store, checked."""
    file = path / MANIFEST
    if not file.is_file():
        raise ResultFileError("not a store of nrm", got=os.fspath(path), expected=f"a folder with {MANIFEST}")
    found = read_manifest(file)
    try:
        schema, _ = found["schema"], found["facts"]["questions"]
    except (KeyError, TypeError) as error:
        raise ResultFileError("the manifest is damaged", where=os.fspath(file), got=str(error)[:200]) from error
    if schema not in READABLE:
        raise ResultFileError(
            "a store of another schema version", where=os.fspath(path), got=f"schema {schema}",
            expected=f"schema {' or '.join(map(str, READABLE))}",
            hint="install the nrm that wrote it, or run the job again elsewhere",
        )  # fmt: skip
    return found


def _refuse_other_job(known: Facts, mine: Facts, path: Path) -> None:
    plain = json.loads(json.dumps(mine))
    if known["schema"] != plain["schema"]:
        raise JobError(
            "the store was written by an earlier version of nrm", where=os.fspath(path),
            got=f"schema {known['schema']}", expected=f"schema {plain['schema']}, to go on",
            hint="another path for the store; nrm.open_store still reads this one",
        )  # fmt: skip
    changed = differing(known, mine)
    if changed:
        lines = "; ".join(line for key in changed for line in _differences(key, plain[key], known.get(key)))
        raise JobError(
            f"the store belongs to a job with another {', '.join(changed)}", where=os.fspath(path), got=lines,
            expected="the same model, data, questions and settings, to go on",
            hint="another path for the store, or the settings of its manifest",
        )  # fmt: skip


def _differences(name: str, mine: Any, other: Any) -> Iterator[str]:
    if isinstance(mine, dict) and isinstance(other, dict):
        for key in sorted({*mine, *other}):
            if mine.get(key) != other.get(key):
                yield from _differences(f"{name} {key}", mine.get(key), other.get(key))
    else:
        yield f"{name}: {_brief(mine)} instead of {_brief(other)}"


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else text[:77] + "..."


class Store(Ranking):
    """The results of a job on disk, finished or not: the best samples, statistics, and SQL.

    The tables are ``top`` (question, ranking, block, sample, score, place), ``statistics`` (question, class, block,
    count, mean, squares, positive, negative, absolute), ``samples`` (sample, label, target, prediction, value, weight,
    error) and ``leaders`` (question, height, node, class, block, count, total, under, over), which :meth:`best` reads.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.facts = read_store(self.path)["facts"]
        if self.facts.get("kind") is not None:
            raise ResultFileError(
                f"a store of {self.facts['kind']}", where=os.fspath(self.path), expected="a store of nrm.relmax",
                hint="nrm.heatmaps(..., store=...) gives its maps again, nrm.load reads one file",
            )  # fmt: skip
        self._shelf = Shelf(self.path, _limits(self.facts))
        self._folders = [self._shelf.folder(span) for span in self._shelf.spans()]
        self._parts = [read_facts(folder) for folder in self._folders]
        if not self._folders:
            raise ResultFileError("the store has no finished shards yet", where=os.fspath(self.path))

    @property
    def shards(self) -> set[int]:
        """The shards that are finished."""
        return self._shelf.finished()

    def sql(self, query: str, parameters: Sequence[Any] = ()) -> Any:
        """Asks DuckDB: ``store.sql("select block, max(score) from top group by block").fetchall()``."""
        return self._connection.execute(query, list(parameters))

    def verify(self) -> None:
        """Refuses a store with a damaged part."""
        for folder in self._folders:
            check_part(folder)

    @cached_property
    def _connection(self) -> Any:
        with extra("store", "nrm.open_store"):
            import duckdb
        connection = duckdb.connect()
        for name in TABLES:
            if name == LEADERS and not all((folder / name).exists() for folder in self._folders):
                continue  # a store of schema 1
            files = ", ".join("'" + os.fspath(folder / name).replace("'", "''") + "'" for folder in self._folders)
            try:
                connection.execute(f"create view {Path(name).stem} as select * from read_parquet([{files}])")
            except duckdb.Error as error:
                raise ResultFileError(
                    "a part of the store is damaged", where=os.fspath(self.path), got=str(error)[:200],
                    hint="run the job again with this store: damaged shards are done again",
                ) from error  # fmt: skip
        return connection

    def _top(self, question: int, by: str, block: int) -> Top:
        found = self.sql(
            "select block, sample, score, place from top where question = ? and ranking = ? and block = ? "
            "order by score desc, sample limit ?",
            [question, by, block, self.facts["k"]],
        ).fetchnumpy()
        return Top(self.facts["k"], self.facts["rows"], *(found[n] for n in ("block", "sample", "score", "place")))

    def _rows(self, question: int, by: str) -> Top:
        found = self.sql(
            "select block, sample, score, place from (select *, row_number() over "
            "(partition by block order by score desc, sample) as rank from top where question = ? and ranking = ?) "
            "where rank <= ? order by block, score desc, sample",
            [question, by, self.facts["k"]],
        ).fetchnumpy()
        return Top(self.facts["k"], self.facts["rows"], *(found[n] for n in ("block", "sample", "score", "place")))

    def _cut(self, question: int, by: str) -> float:
        return float(max(part["cuts"].get(f"{question} {by}", -math.inf) for part in self._parts))

    def _moments(self, question: int) -> ByClass:
        whole = ByClass()
        for folder in self._folders:
            whole.merge(read_statistics(folder, question))
        return whole

    def _leading(self, question: int, label: int) -> ClassSums | None:
        whole = Leading(self._shelf.limits.leading[question])
        for folder in self._folders:
            read_leading(folder, question, whole, label)
        return whole.total(label)

    def _labels(self, question: int) -> list[int]:
        found = self.sql("select distinct class from leaders where question = ? and count > 0 order by 1", [question])
        return [label for (label,) in found.fetchall()]

    def _lines(self, samples: Sequence[int] | None = None) -> dict[int, tuple[int | None, int | None]]:
        chosen = "error is null" if samples is None else f"sample in ({', '.join('?' * len(samples)) or 'null'})"
        query = f"select sample, label, target from samples where {chosen}"
        return {sample: (label, target) for sample, label, target in self.sql(query, samples or ()).fetchall()}

    @property
    def errors(self) -> list[tuple[int, str]]:
        return sorted((int(number), text) for part in self._parts for number, text in part["errors"])

    @property
    def notes(self) -> dict[str, int]:
        """What measures warned of, and in how many batches."""
        whole: dict[str, int] = {}
        for part in self._parts:
            for text, count in part["notes"].items():
                whole[text] = whole.get(text, 0) + count
        return whole

    @property
    def count(self) -> int:
        return sum(part["count"] for part in self._parts)

    def __repr__(self) -> str:
        asked = "; ".join(facts["text"] for facts in self.facts["questions"])
        return f"a store of the best {self.facts['k']} of {self.count} samples for every block of: {asked}"


def open_store(path: str | os.PathLike[str]) -> Store:
    """The results of a job that wrote to this store, finished or not; needs the extra ``store``."""
    try:
        return Store(path)
    except NrmError as error:
        error.at(f"nrm.open_store({os.fspath(path)!r})")
        raise


def merge_stores(path: str | os.PathLike[str], *others: str | os.PathLike[str]) -> Store:
    """One store of several that hold shards of the same job, each written with ``shards=``; they stay as they are."""
    sources = [Path(other) for other in others]
    manifests = [read_store(source) for source in sources]
    if not manifests:
        raise ResultFileError("nothing to merge", expected="stores of one job")
    facts = manifests[0]["facts"]
    for manifest, source in zip(manifests, sources, strict=True):
        _refuse_other_job(manifest["facts"], facts, source)
    with claim_store(Path(path), facts, manifests[0]["threads"]) as (shelf, _):
        for source in sources:
            other = Shelf(source, shelf.limits)
            for span in other.spans():
                if not set(range(*span)) & shelf.finished():
                    check_part(other.folder(span))
                    write_part(shelf.parts, span, read_part(other.folder(span), shelf.limits))
        close(shelf, facts)
    return open_store(path)


def close(shelf: Shelf, facts: Facts) -> None:
    """Folds everything into one part if all shards are there."""
    count = facts["data"]["samples"]
    if count is not None:
        shards = math.ceil(count / facts["shard_size"])
        shelf.fold_groups(shards)
        if shelf.finished() == set(range(shards)):
            shelf.fold_all(shards)

"""Parts of a store: the tally of some shards as a folder of parquet files, there as a whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nrm.errors import JobError, ResultFileError
from nrm.files import replacing_folder
from nrm.jobs.job import READABLE, SCHEMA
from nrm.jobs.tables import TABLES, damaged, read_tables, write_tables
from nrm.jobs.tally import Limits, Tally

FACTS = "part.json"
TEMPORARY = ".writing-"
"""What the folders of half-written parts began with in earlier versions."""


class ShardSpan(NamedTuple):
    """The shards ``first`` to ``last - 1``."""

    first: int
    last: int

    @property
    def folder(self) -> str:
        """The name of the folder of such a part."""
        return f"{self.first:08d}-{self.last:08d}"

    @classmethod
    def read(cls, name: str) -> ShardSpan | None:
        """The span that a folder's name tells."""
        first, mark, last = name.partition("-")
        if not (mark and first.isdigit() and last.isdigit() and len(first) == len(last) == 8):
            return None
        return cls(int(first), int(last))


def write_part(folder: Path, span: ShardSpan, tally: Tally, *, to_stay: bool = False) -> None:
    """Writes a part; one that another worker was given too, and wrote faster, stays."""
    with writing(folder), replacing_folder(folder / span.folder) as temporary:
        write_tables(temporary, tally, to_stay=to_stay)
        facts = {
            "schema": SCHEMA,
            "files": {name: list(_seal(temporary / name)) for name in TABLES},
            "count": tally.count,
            "errors": tally.errors,
            "notes": tally.notes,
            "cuts": {f"{question} {by}": cut for (question, by), cut in _cuts(tally).items()},
        }
        (temporary / FACTS).write_text(json.dumps(facts), encoding="utf-8")


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


def _cuts(tally: Tally) -> dict[tuple[int, str], float]:
    cuts = {key: best.cut for key, best in tally.best.items()}
    return {key: cut for key, cut in cuts.items() if math.isfinite(cut)}


def _seal(path: Path) -> tuple[int, str]:
    """The size and the digest of a file."""
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def read_part(folder: Path, limits: Limits) -> Tally:
    """The tally that a part holds."""
    tally, facts = read_tables(folder, limits), read_facts(folder)
    tally.notes = facts["notes"]
    for key, cut in facts["cuts"].items():
        question, by = key.split()
        tally.gather(int(question), by).left = cut
    return tally


def read_facts(folder: Path) -> dict[str, Any]:
    """What a part says of itself."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        schema = facts["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(folder / FACTS, str(error)) from error
    if schema not in READABLE:
        raise ResultFileError("a part of another schema version", got=f"schema {schema}", expected=str(READABLE))
    assert isinstance(facts, dict)
    return facts


def check_part(folder: Path) -> None:
    """Refuses a part whose files are not what was written."""
    for name, (size, digest) in read_facts(folder)["files"].items():
        path = folder / name
        try:
            same = _seal(path) == (size, digest)
        except OSError as error:
            raise damaged(path, str(error)) from error
        if not same:
            raise damaged(path, "other content than was written")

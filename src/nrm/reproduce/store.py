"""Results on disk: parts that are finished stay finished, whatever happens afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from nrm.errors import NrmError, ResultFileError
from nrm.files import begin, differing, replacing

SCHEMA = 1

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Unit:
    """A piece of work with a name of its own; what it gives is kept."""

    key: str
    work: Callable[[], Tensors]


class ExperimentFolder:
    """The folder of one experiment. It belongs to one set of settings; other settings are refused."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        (folder / "parts").mkdir(parents=True, exist_ok=True)
        mine, path = {"schema": SCHEMA, **settings}, folder / "settings.json"
        theirs = begin(path, mine)
        different = sorted({*differing(theirs, mine), *differing(mine, theirs)})
        if different:
            raise NrmError(
                "another run lies in this folder", where=str(folder),
                got=", ".join(f"{k}={theirs.get(k)!r}" for k in different),
                expected=", ".join(f"{k}={mine.get(k)!r}" for k in different),
                hint="choose another --out, or delete the folder",
            )  # fmt: skip

    def path(self, key: str) -> Path:
        """Where a part lies."""
        return self.folder / "parts" / f"{key}.safetensors"

    def read(self, key: str) -> Tensors:
        """A finished part."""
        try:
            return load_file(self.path(key))
        except Exception as error:
            raise ResultFileError(
                "a finished part cannot be read", where=str(self.path(key)), got=str(error)[:120],
                hint="delete it; the next run computes it again",
            ) from error  # fmt: skip

    def has(self, key: str) -> bool:
        """Whether a part is finished."""
        return self.path(key).exists()

    def keep(self, key: str, work: Callable[[], Tensors]) -> Tensors:
        """A part from the disk, or computed and kept."""
        if not self.has(key):
            found = {name: t.detach().cpu().contiguous() for name, t in work().items()}
            with replacing(self.path(key)) as temporary:
                save_file(found, temporary)
        return self.read(key)

    def finish(self, units: Sequence[Unit], track: Callable[[Sequence[Unit]], Iterator[Unit]]) -> None:
        """Works off what is not finished yet."""
        missing = [unit for unit in units if not self.has(unit.key)]
        for unit in track(missing):
            self.keep(unit.key, unit.work)

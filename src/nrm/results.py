"""Keep results: tensors with the names of their axes and the facts of their measure, in one safetensors file.

The header of the file has one entry, ``nrm``: a JSON object with ``schema``, ``versions``, ``axes`` and ``measure``.
Any safetensors reader opens the file; nothing in it can run code. Everything in the library that writes results
writes this format.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from nrm._version import __version__
from nrm.errors import NrmError, QuestionError, ResultFileError
from nrm.files import replacing
from nrm.tables import SAMPLE, Results, brief

SCHEMA = 1
ENTRY = "nrm"
START = 9  # bytes that tell what a file is

Values: TypeAlias = torch.Tensor | npt.NDArray[Any]
Named: TypeAlias = Values | tuple[Values, Iterable[object]] | Results
"""A tensor, a pair of a tensor and what its axes are, or a table with a single tensor."""

DTYPES = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    }
)


@runtime_checkable
class Described(Protocol):
    """What :func:`save` needs to know of a measure: its facts as a JSON-able dictionary, and its batch size."""

    def describe(self) -> Mapping[str, Any]: ...

    def __len__(self) -> int: ...


def save(
    path: str | os.PathLike[str], *, measure: Described | Mapping[str, Any] | None = None, **tensors: Named
) -> None:
    """Write tensors, the names of their axes and the facts of their measure to one safetensors file.

    Args:
        path: the file. It is replaced as a whole or not at all: the data is written under another name in the same
            folder, flushed to the disk and renamed.
        measure: the measure the tensors came from (or the ``measure`` of loaded results).
        tensors: by name, each a tensor or array, or a pair ``(tensor, axes)`` with one text per axis, or what
            ``R.table(...)`` gave, whose labels are kept as well. Layers and
            partitions can stand for themselves: ``pairs=(T, (a.channels, b.channels))``. With ``measure``, such axes
            may leave out the leading sample axis, and a single one may cover all the others; elsewhere, repeat one
            that covers several, as positions cover rows and columns.

    The same content gives the same bytes, whatever the order of the arguments.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "r.safetensors"
    >>> save(path, pairs=(torch.rand(1, 4, 6), ("sample", "conv1 channel", "conv2 channel")))
    >>> load(path).axes["pairs"]
    ('sample', 'conv1 channel', 'conv2 channel')
    """
    try:
        if not tensors and measure is None:
            raise QuestionError("nothing to save", expected="a tensor by name", hint="nrm.save(path, relevance=R(x))")
        data: dict[str, torch.Tensor] = {}
        axes: dict[str, list[str]] = {}
        places: dict[str, dict[str, Any]] = {"labels": {}, "numbers": {}}
        for name in sorted(tensors):
            given = tensors[name]
            if isinstance(given, Results):
                _read_places(name, given, places)
                given = _read_table(name, given)
            data[name], known = _read_named(name, given, measure)
            if known is not None:
                axes[name] = known
        facts = {
            "schema": SCHEMA,
            "versions": {"nrm": __version__, "torch": str(torch.__version__)},
            "axes": axes,
            "measure": _read_measure(measure),
            **{key: found for key, found in places.items() if found},
        }
        # One entry only: safetensors keeps entries in no fixed order.
        header = {ENTRY: json.dumps(facts, sort_keys=True, allow_nan=False, separators=(",", ":"))}
        with replacing(path) as temporary:
            _write(_own_memory(data), temporary, header)
    except NrmError as error:
        error.at(f"nrm.save({os.fspath(path)!r})")
        raise


def load(path: str | os.PathLike[str]) -> Results:
    """Read a file that :func:`save` wrote; tensors are on the CPU, wherever they were before.

    Anything else is refused with a :class:`nrm.errors.ResultFileError`: another format, a damaged file, a safetensors
    file of another program, another schema version. Nothing is ever unpickled.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "r.safetensors"
    >>> save(path, heat=(torch.zeros(1, 8, 8), ("sample", "row", "column")), shares=torch.tensor([0.25, 0.75]))
    >>> print(load(path))  # doctest: +ELLIPSIS
    Results (schema 1; nrm ..., torch ...)
      heat    float32  1 sample x 8 row x 8 column
      shares  float32  2 axis 0
    """
    try:
        with open(path, "rb") as plain:
            start, size = plain.read(START), os.fstat(plain.fileno()).st_size
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                facts = _read_header(file.metadata() or {})
                # A copy, because the reader's tensors are views of the file on disk.
                tensors = {name: file.get_tensor(name).clone() for name in sorted(file.keys())}
        except SafetensorError as error:
            raise _explain(start, size, error) from error
        axes = _read_axes(facts["axes"], tensors)
        labels, numbers = (_read_known(facts.get(key, {}), key, axes) for key in ("labels", "numbers"))
        return Results(tensors, axes, facts["measure"], facts["versions"], facts["schema"], labels, numbers)
    except NrmError as error:
        error.at(f"nrm.load({os.fspath(path)!r})")
        raise


def _write(tensors: dict[str, torch.Tensor], path: Path, header: dict[str, str]) -> None:
    try:
        save_file(tensors, path, metadata=header)
    except SafetensorError as error:
        raise ResultFileError(
            "the result file could not be written",
            got=str(error),
            expected="a folder with enough space that can be written to",
            hint="nothing was changed; free some space or choose another path",
        ) from error


# Reading what a user hands over


def _read_named(
    name: str, given: object, measure: Described | Mapping[str, Any] | None
) -> tuple[torch.Tensor, list[str] | None]:
    if name == "__metadata__" or not _is_text(name):
        raise QuestionError("a tensor cannot have this name", got=repr(name), expected="a text that is not reserved")
    if not isinstance(given, tuple):
        return _read_tensor(name, given), None
    if len(given) != 2 or isinstance(given[1], (str, bytes, torch.Tensor, np.ndarray, Mapping)):
        raise QuestionError(
            f"{name} is not a tensor with its axes",
            got=f"a tuple of {', '.join(type(part).__name__ for part in given) or 'nothing'}",
            expected='(tensor, ("sample", "conv1 channel", ...))',
        )
    tensor = _read_tensor(name, given[0])
    batch = len(measure) if isinstance(measure, Described) and not isinstance(measure, Mapping) else None
    return tensor, _read_names(name, tuple(tensor.shape), given[1], batch)


def _read_table(name: str, table: Results) -> tuple[Values, Iterable[object]]:
    """The only tensor of a table, with its axes."""
    if len(table) != 1:
        raise QuestionError(
            f"{name} has several tensors", got=", ".join(table) or "none", expected="a table with one tensor",
            hint="nrm.save(path, **{name: (table[name], table.axes[name]) for name in table})",
        )  # fmt: skip
    ((own, tensor),) = table.items()
    return tensor, table.axes[own]


def _read_places(name: str, table: Results, places: dict[str, dict[str, Any]]) -> None:
    """The labels and numbers of a table's axes, added to those of other tables."""
    for key, found in (("labels", table.labels), ("numbers", table.numbers)):
        for axis, values in found.items():
            plain = _plain(values, f"{name}.{key}")
            if places[key].setdefault(axis, plain) != plain:
                raise QuestionError(
                    f"the axis {axis!r} has other {key} in another table", where=name, got=brief(str(values)),
                    expected=brief(str(places[key][axis])), hint="save them to files of their own",
                )  # fmt: skip


def _read_names(name: str, shape: tuple[int, ...], axes: Iterable[object], batch: int | None) -> list[str]:
    """One text per axis; layers and partitions of a measure's answer may leave out its sample axis."""
    axes = list(axes)
    names = [str(axis) for axis in axes]
    if len(names) == len(shape):
        return names
    values = bool(axes) and not any(isinstance(axis, str) for axis in axes)
    if values and batch is not None and shape[:1] == (batch,):
        if len(names) == 1:
            return [SAMPLE, *names * (len(shape) - 1)]
        if len(names) == len(shape) - 1:
            return [SAMPLE, *names]
    raise QuestionError(
        f"the axes of {name} do not fit the tensor",
        got=f"{len(names)} axes ({', '.join(names)}) for shape {shape}",
        expected=f"{len(shape)} axes, one for each axis of the tensor",
        hint='name the sample axis too ("sample"), and repeat what covers several axes',
    )


def _read_tensor(name: str, given: object) -> torch.Tensor:
    if isinstance(given, np.ndarray):
        try:
            # A copy in native byte order: torch reads neither other orders nor negative strides.
            given = torch.from_numpy(np.array(given, dtype=given.dtype.newbyteorder("="), order="C"))
        except TypeError as error:
            raise QuestionError(
                f"{name} cannot be saved", got=f"an array of {given.dtype}", expected="real numbers or booleans"
            ) from error
    if not isinstance(given, torch.Tensor):
        raise QuestionError(
            f"{name} cannot be saved",
            got=type(given).__name__,
            expected="a tensor or an array, or a pair (tensor, axes)",
            hint="torch.as_tensor(...)",
        )
    if given.dtype not in DTYPES or given.layout != torch.strided or given.is_meta:
        raise QuestionError(
            f"{name} cannot be saved",
            got=f"a tensor with {given.dtype}, {given.layout}, device {given.device}",
            expected="a dense tensor of real numbers or booleans, with data",
            hint=".to_dense(), or .to(torch.float32)",
        )
    return given.detach().cpu().contiguous()


def _own_memory(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of tensors that share memory with an earlier one, which safetensors refuses."""
    seen: set[int] = set()
    owned = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        owned[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return owned


def _read_measure(measure: Described | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if measure is None:
        return None
    if not isinstance(measure, Mapping | Described):
        raise QuestionError(
            "measure is not a measure", got=type(measure).__name__, expected="R of nrm.measure(...), or a dictionary"
        )
    facts = measure if isinstance(measure, Mapping) else measure.describe()
    plain = _plain(dict(facts), "measure")
    assert isinstance(plain, dict)
    return plain


def _plain(value: object, place: str) -> object:
    """A value of JSON's types only, or a complaint that names the place of what has none."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str) and _is_text(value):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item, f"{place}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) and _is_text(key) for key in value):
        return {key: _plain(item, f"{place}[{key!r}]") for key, item in value.items()}
    raise QuestionError(
        f"{place} cannot be written to a header",
        got=f"{type(value).__name__}: {brief(repr(value))}",
        expected="texts, finite numbers, booleans, None, lists, and dictionaries by text",
    )


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Reading files, which may be anything


def _read_header(entries: Mapping[str, str]) -> dict[str, Any]:
    if ENTRY not in entries:
        raise ResultFileError(
            "not a result file of nrm",
            got=f"a safetensors file with header entries {sorted(entries) or 'of no kind'}",
            expected=f"the header entry {ENTRY!r}",
            hint="read other safetensors files with safetensors.torch.load_file",
        )
    try:
        facts = json.loads(entries[ENTRY], parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _damaged(f"no JSON: {brief(str(error))}") from error
    if not isinstance(facts, dict):
        raise _damaged(f"a JSON {type(facts).__name__}")
    schema = facts.get("schema")
    if type(schema) is not int:
        raise _damaged(f"schema {brief(repr(schema))}")
    if schema != SCHEMA:
        versions = facts.get("versions")
        writer = versions.get("nrm") if isinstance(versions, dict) else None
        raise ResultFileError(
            "a result file of another schema version",
            got=f"schema {schema}, written by nrm {brief(str(writer))}",
            expected=f"schema {SCHEMA}",
            hint="install a newer nrm" if schema > SCHEMA else "write the file again with this version",
        )
    for key, kinds in (("versions", dict), ("axes", dict), ("measure", (dict, type(None)))):
        if not isinstance(facts.get(key, ...), kinds):
            raise _damaged(f"{key} {brief(repr(facts.get(key)))}")
    if not all(isinstance(number, str) for number in facts["versions"].values()):
        raise _damaged(f"versions {brief(repr(facts['versions']))}")
    return facts


def _read_axes(known: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[str, ...]]:
    for name, axes in known.items():
        if name not in tensors:
            raise _damaged(f"axes for {brief(repr(name))}, which is not in the file")
        fits = isinstance(axes, list) and len(axes) == tensors[name].ndim and all(isinstance(a, str) for a in axes)
        if not fits:
            raise _damaged(f"axes {brief(repr(axes))} for shape {tuple(tensors[name].shape)}")
    return {
        name: tuple(known.get(name) or (f"axis {i}" for i in range(tensor.ndim))) for name, tensor in tensors.items()
    }


def _read_known(known: Any, key: str, axes: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The labels or numbers of axes, by the text of the axis."""
    texts = {text for named in axes.values() for text in named}
    kind = int if key == "numbers" else str
    if not isinstance(known, dict) or not set(known) <= texts:
        raise _damaged(f"{key} {brief(repr(known))}")
    found: dict[str, Any] = {}
    for axis, values in known.items():
        nested = isinstance(values, list) and bool(values) and all(isinstance(v, list) for v in values)
        rows = values if nested and key == "labels" else [values]
        if not all(isinstance(row, list) and all(type(v) is kind for v in row) for row in rows):
            raise _damaged(f"{key} of {brief(axis)}: {brief(repr(values))}")
        found[axis] = tuple(map(tuple, rows)) if nested else tuple(rows[0])
    return found


def _explain(start: bytes, size: int, error: SafetensorError) -> ResultFileError:
    """Why safetensors could not read a file that has this start and size, in words."""
    if start.startswith((b"PK\x03\x04", b"\x80")) and start[8:] != b"{":
        return ResultFileError(
            "not a safetensors file",
            got="a pickle or a zip archive, as torch.save and numpy.savez write them",
            expected="a file that nrm.save wrote",
            hint="nrm never unpickles: load it where you trust it, and nrm.save its tensors",
        )
    # Eight bytes for the length of the header, then the header, a JSON object.
    cut = len(start) < START or start[8:] == b"{"
    return ResultFileError(
        "the result file is cut off or damaged" if cut else "not a safetensors file",
        got=f"{size} bytes; {brief(str(error))}",
        expected="a file that nrm.save wrote",
        hint="copy or write the file again" if cut else None,
    )


def _damaged(got: str) -> ResultFileError:
    return ResultFileError(
        "the header of the result file is damaged",
        got=got,
        expected="a header that nrm.save wrote",
        hint="write or copy the file again",
    )


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")

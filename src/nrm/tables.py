"""What people carry away: tensors with named axes, and lists of records, as text, HTML, pandas and xarray.

Every answer with axes is a :class:`Results`, every list of findings has :class:`Records`; both become tables of pandas
and xarray in one way, with the labels of their axes beside the numbers.
"""

from __future__ import annotations

import html
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.extras import extra
from nrm.largest import largest

SAMPLE = "sample"
SHOWN = 10
"""How many entries of a table are shown."""

Labels = tuple[str, ...] | tuple[tuple[str, ...], ...]
"""One name for every place of an axis, or one such list per sample."""
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)
class Results(Mapping[str, Tensor]):
    """Tensors by name, with what their axes are: an answer as a table (``R.table``), or a file's (``nrm.load``).

    ``axes[name]`` has one text per axis of the tensor. ``labels`` has names for the places of an axis, by its text: one
    per place, or one list per sample; ``numbers`` the numbers of the places, where they are not 0, 1, 2 and so on.
    ``measure`` are the facts of the measure they came from (or None), ``versions`` the versions of nrm and torch that
    wrote the file.

    >>> table = Results({"relevance": torch.tensor([[0.25, 0.75]])}, {"relevance": ("sample", "input")},
    ...                 labels={"input": ("age", "bmi")})
    >>> print(table)
    Results
      relevance  float32  1 sample x 2 input
        0.75  sample 0, input 1 'bmi'
        0.25  sample 0, input 0 'age'
    >>> table.to_pandas()["input label"].tolist()
    ['age', 'bmi']
    """

    tensors: Mapping[str, Tensor]
    axes: Mapping[str, tuple[str, ...]]
    measure: dict[str, Any] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    schema: int | None = None
    labels: Mapping[str, Labels] = field(default_factory=dict)
    numbers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    # ---- other libraries -------------------------------------------------------------------------------------

    def to_pandas(self, name: str | None = None) -> Any:
        """A pandas table: a row for every place, a column for every tensor, the axes as its index.

        Labels of an axis have a column of their own, ``"AXIS label"``. Tensors share a table if they have the same
        axes; where they do not, ``name`` says which one is meant, and those with its axes come along.
        """
        with extra("table", "to_pandas()"):
            import pandas
        chosen = self._alike(name)
        axes, shape = unique(self.axes[chosen[0]]), tuple(self[chosen[0]].shape)
        columns: dict[str, Array] = {}
        for n, (axis, shown) in enumerate(zip(self.axes[chosen[0]], axes, strict=True)):
            if axis in self.labels:
                columns[f"{shown} label"] = np.broadcast_to(self._label_array(axis, n, shape), shape).reshape(-1)
        columns |= {one: as_array(self[one]).reshape(-1) for one in chosen}
        index = None
        if axes:
            places = [self._places(axis, size) for axis, size in zip(self.axes[chosen[0]], shape, strict=True)]
            many = len(axes) > 1
            index = (
                pandas.MultiIndex.from_product(places, names=axes) if many else pandas.Index(places[0], name=axes[0])
            )
        return pandas.DataFrame(columns, index=index)

    def to_xarray(self) -> Any:
        """An xarray data set: every tensor with its axes as dimensions, numbers and labels as coordinates."""
        with extra("table", "to_xarray()"):
            import xarray
        sizes: dict[str, int] = {}
        coordinates: dict[str, Any] = {}
        data = {}
        for name, tensor in self.tensors.items():
            axes, shape = unique(self.axes[name]), tuple(tensor.shape)
            for n, (axis, shown, size) in enumerate(zip(self.axes[name], axes, shape, strict=True)):
                if sizes.setdefault(shown, size) != size:
                    raise QuestionError(
                        f"the axis {shown!r} has two lengths", got=f"{sizes[shown]} and {size}, the latter in {name!r}",
                        expected="one length for every name of an axis", hint="save tensors with axes of other names",
                    )  # fmt: skip
                coordinates[shown] = (shown, list(self._places(axis, size)))
                if axis in self.labels:
                    label = np.broadcast_to(self._label_array(axis, n, shape), shape)
                    own = _is_own(self.labels[axis])
                    kept = [a for a in range(len(shape)) if a == n or (own and a == 0)]
                    at = tuple(slice(None) if a in kept else 0 for a in range(len(shape)))
                    coordinates[f"{shown} label"] = ([axes[a] for a in kept], label[at])
            data[name] = (axes, as_array(tensor))
        return xarray.Dataset(data, coords=coordinates)

    def _alike(self, name: str | None) -> list[str]:
        """The tensors that share the axes of one of them."""
        if not self.tensors:
            raise QuestionError("nothing to tabulate", got="no tensors")
        if name is not None and name not in self.tensors:
            raise QuestionError("no such tensor", got=repr(name), expected=", ".join(map(repr, self.tensors)))
        first = next(iter(self.tensors)) if name is None else name
        key = (self.axes[first], tuple(self[first].shape))
        alike = [one for one in self.tensors if (self.axes[one], tuple(self[one].shape)) == key]
        if name is None and len(alike) < len(self.tensors):
            raise QuestionError(
                "the tensors have different axes", got="; ".join(self._heads()),
                expected="tensors of one shape for one table", hint=f"to_pandas({first!r}), or to_xarray() for all",
            )  # fmt: skip
        return alike

    def names(self, name: str, axis: int, sample: int = 0) -> list[str]:
        """What the places of an axis of a tensor are called: by their labels, else by their numbers.

        >>> table = Results({"r": torch.zeros(1, 2)}, {"r": ("sample", "x")}, labels={"x": ("age", "bmi")})
        >>> table.names("r", 1), table.names("r", 0)
        (['age', 'bmi'], ['0'])
        """
        kind, size = self.axes[name][axis], self[name].shape[axis]
        labels = self.labels.get(kind, ())
        own = labels[sample if len(labels) > 1 else 0] if _is_own(labels) else labels
        known = [str(label) for label in own][:size]
        numbers = [str(n) for n in self._places(kind, size)]
        return [label or number for label, number in itertools.zip_longest(known, numbers, fillvalue="")]

    def _places(self, axis: str, size: int) -> Sequence[int]:
        numbers = self.numbers.get(axis, ())
        return numbers if len(numbers) == size else range(size)

    def _label_array(self, axis: str, n: int, shape: tuple[int, ...]) -> Array:
        """The labels of an axis, shaped so that they broadcast to a tensor."""
        labels = self.labels[axis]
        rows = labels if _is_own(labels) else (labels,)
        table = np.full((len(rows), shape[n]), "", dtype=object)
        for row, names in zip(table, rows, strict=True):
            row[: len(names)] = list(names)[: shape[n]]
        front = (len(rows),) if n else ()
        between = (1,) * (n - 1)
        return table.reshape(*front, *between, shape[n], *(1,) * (len(shape) - n - 1))

    # ---- shown -----------------------------------------------------------------------------------------------

    def _heads(self) -> list[str]:
        width = max(map(len, self.tensors), default=0)
        lines = []
        for name, tensor in self.tensors.items():
            axes = " x ".join(f"{size} {axis}" for size, axis in zip(tensor.shape, self.axes[name], strict=True))
            dtype = str(tensor.dtype).removeprefix("torch.")
            lines.append(f"{name:<{width}}  {dtype}  {axes or 'one number'}")
        return lines

    def entries(self, name: str, k: int = SHOWN) -> list[tuple[float, str]]:
        """The k largest entries of a tensor, whatever their sign, each with its place in words."""
        tensor = self[name].detach().cpu()
        values = tensor.double().flatten()
        axes, shape = unique(self.axes[name]), tuple(tensor.shape)
        found = []
        for flat in largest(values.abs(), k).tolist():
            at = [int(i) for i in np.unravel_index(flat, shape)] if shape else []
            words = [self._word(n, at, shape, self.axes[name][n], shown) for n, shown in enumerate(axes)]
            found.append((float(values[flat]), ", ".join(words)))
        return found

    def _word(self, n: int, at: Sequence[int], shape: tuple[int, ...], axis: str, shown: str) -> str:
        word = f"{shown} {self._places(axis, shape[n])[at[n]]}"
        if axis not in self.labels:
            return word
        label = np.broadcast_to(self._label_array(axis, n, shape), shape)[tuple(at)]
        return f"{word} {label!r}" if label else word

    def __repr__(self) -> str:
        written = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        file = "" if self.schema is None else f" (schema {self.schema}; {written})"
        lines = [f"Results{file}", *(f"  {head}" for head in self._heads())]
        if len(self.tensors) == 1 and self.schema is None:
            name = next(iter(self.tensors))
            lines += [f"    {value:.4g}  {place}" for value, place in self.entries(name)]
            left = self[name].numel() - SHOWN
            lines += [f"    and {left} more"] if left > 0 else []
        if self.measure is not None:
            facts = ", ".join(f"{key} {brief(fact)}" for key, fact in self.measure.items())
            lines.append(f"  measure: {facts}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for name, head in zip(self.tensors, self._heads(), strict=True):
            rows.append((head, ""))
            rows += [(place, f"{value:.4g}") for value, place in self.entries(name)]
        return html_table("the largest entries", ("place", "value"), rows)


class Records(ABC):
    """A list of findings: each a row of a table, as text, HTML, pandas or xarray."""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """Every finding as plain data by column."""

    def to_pandas(self) -> Any:
        """A pandas table with a row per finding."""
        with extra("table", "to_pandas()"):
            import pandas
        return pandas.DataFrame.from_records(self.records())

    def to_xarray(self) -> Any:
        """An xarray data set: the findings along the dimensions that number them, every other column a variable."""
        with extra("table", "to_xarray()"):
            import xarray  # noqa: F401
        frame = self.to_pandas()
        keys = [key for key in self._keys() if key in frame.columns]
        if keys:
            frame = frame.set_index(keys)
        else:
            frame.index.name = "row"
        return frame.to_xarray()

    def _keys(self) -> Sequence[str]:
        """The columns that number the findings; none of them: the row."""
        return ()

    def _title(self) -> str:
        return ""

    def _repr_html_(self) -> str:
        records = self.records()
        heads = list(dict.fromkeys(key for record in records for key in record))
        return html_table(self._title(), heads, [[cell(record.get(head)) for head in heads] for record in records])


class Tabled(ABC):
    """Something whose numbers are a table: ``table()`` has them all, with named axes."""

    @abstractmethod
    def table(self) -> Results:
        """All its numbers, with the names of their axes."""

    def to_pandas(self, name: str | None = None) -> Any:
        """A pandas table of the numbers that share the axes of one of them, by default of the first."""
        table = self.table()
        return table.to_pandas(next(iter(table)) if name is None else name)

    def to_xarray(self) -> Any:
        """An xarray data set of all numbers."""
        return self.table().to_xarray()


def _is_own(labels: Labels) -> bool:
    """Whether every sample has labels of its own."""
    return bool(labels) and isinstance(labels[0], tuple)


def as_array(tensor: Tensor) -> Array:
    """A tensor as an array of numpy, which has no bfloat16."""
    plain = tensor.detach().cpu()
    array: Array = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    return array


def unique(axes: Sequence[str]) -> list[str]:
    """Texts of axes, those that occur several times numbered.

    >>> unique(("sample", "input.positions", "input.positions"))
    ['sample', 'input.positions axis 0', 'input.positions axis 1']
    """
    counts = {axis: itertools.count() for axis in axes}
    return [f"{axis} axis {next(counts[axis])}" if list(axes).count(axis) > 1 else axis for axis in axes]


def cell(value: object) -> str:
    """A value in a few letters, as tables show it.

    >>> cell(0.123456), cell(None), cell((1, 2)), cell(True)
    ('0.1235', '', '1, 2', 'yes')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def html_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """A table for notebooks; every text is escaped.

    >>> html_table("a <b>", ["x"], [["1"]])
    '<table><caption>a &lt;b&gt;</caption><thead><tr><th>x</th></tr></thead><tbody><tr><td>1</td></tr></tbody></table>'
    """
    caption = "; ".join(html.escape(text) for text in (title, *notes) if text)
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return (
        f"<table>{f'<caption>{caption}</caption>' if caption else ''}<thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def brief(fact: object) -> str:
    """A fact in a few letters.

    >>> brief("epsilon-plus-flat"), brief([1, 2, 3]), brief({"a": 1})
    ('epsilon-plus-flat', '(3)', '(1)')
    """
    if isinstance(fact, list | dict):
        return f"({len(fact)})"
    text = str(fact)
    return text if len(text) <= 60 else text[:57] + "..."

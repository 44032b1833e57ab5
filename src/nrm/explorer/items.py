"""What can be looked at: images of a folder, tensors, texts, graphs, a data set, and what a person adds on the page.

Items are known to the page by number, never by path.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nrm.errors import QuestionError, readable
from nrm.files import SUFFIXES, files_below, is_tokenizer, read_image, token_names, tokenize
from nrm.jobs import split_label

UPLOADED = ("JPEG", "PNG", "WEBP", "BMP")
"""The formats of images that a person adds on the page: what browsers show and people have."""
MOST_ITEMS, MOST_UPLOADS = 1000, 64
MOST_LETTERS = 4000
LONG_NAME = 60
"""Characters of a text that is its own name."""


class ModelInputs(NamedTuple):
    """The inputs of the model, and names that belong to them (``{"input": tokens}``)."""

    inputs: Any
    labels: dict[str, Any]


class PageItem(NamedTuple):
    """Something to explain: how the page calls it, its name, how the model's inputs are made of it, and its class."""

    id: str
    name: str
    load: Callable[[], ModelInputs]
    truth: Callable[[], int | None] = lambda: None


class Items:
    """The items of one explorer.

    ``transform`` turns a PIL image or a text into the model's inputs (a tokenizer of transformers does the latter);
    ``names`` gives the names of their positions, from these inputs: tokens, atoms.
    """

    def __init__(
        self, data: Any = None, transform: Callable[..., Any] | None = None, names: Callable[[Any], Any] | None = None
    ) -> None:
        self._transform, self._names = transform, names
        self._numbers = itertools.count()
        self._items: dict[str, PageItem] = {}
        self._own: list[str] = []
        self.kind = _kind(data, transform)
        for n, (name, get) in enumerate(_read(data)):
            item = self._add(name, get)
            if not isinstance(data, Tensor | str | os.PathLike | Mapping) and hasattr(data, "__getitem__"):
                self._items[item.id] = item._replace(truth=_class_of(data, n))

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that reads texts; None if something else does."""
        return self._transform if is_tokenizer(self._transform) else None

    def _add(self, name: str, get: Callable[[], Any]) -> PageItem:
        item = PageItem(str(next(self._numbers)), name[:200] or "input", lambda: self._load(get()))
        self._items[item.id] = item
        return item

    def _load(self, source: Any) -> ModelInputs:
        """The inputs of an image, the file or the bytes of one, a text, or inputs as they are."""
        if isinstance(source, bytes | Path):
            source = read_image(source, UPLOADED) if isinstance(source, bytes) else read_image(source)
        if isinstance(source, str):
            inputs = self._tokens(source)
        elif hasattr(source, "convert"):
            inputs = batched((self._transform or as_tensor)(source))
        else:
            inputs = batched(source)
        names = self._named(inputs)
        return ModelInputs(inputs, {} if names is None else {"input": [str(name) for name in names]})

    def _tokens(self, text: str) -> Any:
        if self._transform is None:
            raise QuestionError(
                "a text needs a transform", got=repr(text[:60]), where="nrm.explore",
                expected="transform=, a tokenizer or a function from a text to the model's inputs",
            )  # fmt: skip
        if is_tokenizer(self._transform):
            return tokenize(self._transform, text)
        made = self._transform(text)
        return made[None] if isinstance(made, Tensor) and made.ndim == 1 else made

    def _named(self, inputs: Any) -> Any:
        if self._names is not None:
            return self._names(inputs)
        return token_names(self._transform, inputs)

    def upload(self, name: str, content: bytes) -> PageItem:
        """A new image; what cannot be read is refused now. The oldest of many is forgotten."""
        return self._keep(name or "image", content)

    def write(self, text: str) -> PageItem:
        """A new text, likewise."""
        if not text.strip() or len(text) > MOST_LETTERS:
            raise QuestionError(
                "not a text to explain", got=f"{len(text)} characters", expected=f"some words, at most {MOST_LETTERS}"
            )
        return self._keep(_shortened(text), text)

    def _keep(self, name: str, source: Any) -> PageItem:
        loaded = self._load(source)
        item = self._add(name, lambda: None)._replace(load=lambda: loaded)
        self._items[item.id] = item
        self._own.append(item.id)
        if len(self._own) > MOST_UPLOADS:
            del self._items[self._own.pop(0)]
        return item

    def name(self, name: str) -> str:
        """An input that is known by its name only: its measure is there, and another one cannot be made."""

        def refuse() -> Any:
            raise QuestionError(
                "this measure has no inputs to measure again", got=name, hint="nrm.explore(model, data) has all classes"
            )

        return self._add(name, refuse).id

    def __getitem__(self, id: str) -> PageItem:
        try:
            return self._items[id]
        except (KeyError, TypeError):
            raise QuestionError("no such input", got=repr(id)[:80], expected="one of the list") from None

    def listed(self) -> list[dict[str, str]]:
        """What the page lists."""
        return [{"id": item.id, "name": item.name} for item in self._items.values()]


ItemSource = tuple[str, Callable[[], Any]]


def _read(data: Any) -> list[ItemSource]:
    """Names of the user's data, and how to get each."""
    if data is None:
        return []
    if isinstance(data, str | os.PathLike):
        return _folder(Path(data))
    if isinstance(data, Mapping) or hasattr(data, "edge_index"):
        return [("input", lambda: data)]
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise QuestionError(
            "not a collection of inputs", got=type(data).__name__, where="nrm.explore",
            expected="a folder, a tensor with samples first, a list or a data set",
        )  # fmt: skip
    count = min(len(data), MOST_ITEMS)
    if isinstance(data, Tensor):
        return [(f"sample {i}", _sample(data, i)) for i in range(count)]
    return [_entry(data, i) for i in range(count)]


def _kind(data: Any, transform: Any) -> str:
    """What can be added on the page: images, texts, or nothing."""
    if is_tokenizer(transform):
        return "text"
    if data is None or isinstance(data, str | os.PathLike):
        return "image"
    if isinstance(data, Tensor):
        return "image" if data.ndim == 4 else "other"
    first = split_label(data[0])[0] if isinstance(data, list | tuple) and data else None
    if isinstance(first, str) and _is_text(first):
        return "text"
    pictured = hasattr(first, "convert") or (isinstance(first, Tensor) and first.ndim in (3, 4))
    return "image" if pictured or isinstance(first, str | os.PathLike) or first is None else "other"


def _is_text(entry: str) -> bool:
    """Whether a string of a list is something to read rather than the path of an image."""
    return not entry.lower().endswith(SUFFIXES)


def _shortened(text: str) -> str:
    return text if len(text) <= LONG_NAME else f"{text[: LONG_NAME - 1]}…"


def _sample(data: Tensor, i: int) -> Callable[[], Any]:
    return lambda: data[i : i + 1]


def _entry(data: Any, i: int) -> ItemSource:
    known = split_label(data[i])[0] if isinstance(data, list | tuple) else None
    if isinstance(known, str) and _is_text(known):
        return _shortened(known), lambda: known

    def get() -> Any:
        entry = split_label(data[i])[0]  # a data set's entries come with their class
        path = isinstance(entry, os.PathLike) or (isinstance(entry, str) and not _is_text(entry))
        return Path(entry) if path else entry

    return (Path(known).name if isinstance(known, str | os.PathLike) else f"sample {i}"), get


def _class_of(data: Any, n: int) -> Callable[[], int | None]:
    return lambda: split_label(data[n])[1]


def _folder(path: Path) -> list[ItemSource]:
    if not path.exists():
        raise QuestionError("there is no such folder", got=str(path), where="nrm.explore")
    found = [path] if path.is_file() else [path / name for name in files_below(path, SUFFIXES)]
    if not found:
        raise QuestionError(
            "the folder has no images", got=str(path), expected=", ".join(SUFFIXES), where="nrm.explore"
        )
    home = path if path.is_dir() else path.parent
    return [(readable(p.relative_to(home).as_posix()), _file(p)) for p in found[:MOST_ITEMS]]


def _file(path: Path) -> Callable[[], Any]:
    return lambda: path


def as_tensor(image: Any) -> Tensor:
    """An image as it is: ``(1, 3, H, W)`` with values from 0 to 1. The transform where none is given."""
    return torch.from_numpy(np.array(image, dtype=np.float32) / 255).permute(2, 0, 1)[None]


def batched(inputs: Any) -> Any:
    """Inputs with a batch of one; pictures ``(C, H, W)`` and rows get their sample axis."""
    return inputs[None] if isinstance(inputs, Tensor) and inputs.ndim in (1, 3) else inputs

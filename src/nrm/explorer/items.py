"""What can be looked at: the images of a folder, tensors, a data set, and what a person drops on the page.

Items are known to the page by number, never by path.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nrm.errors import NrmError, QuestionError
from nrm.extras import extra

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
MOST_ITEMS, MOST_UPLOADS = 1000, 64
MOST_BYTES, MOST_PIXELS = 20 * 2**20, 40_000_000


class Item(NamedTuple):
    """Something to explain: how the page calls it, its name, and how the model's inputs are made of it."""

    id: str
    name: str
    load: Callable[[], Any]


class Items:
    """The items of one explorer. ``transform`` turns a PIL image into the model's inputs."""

    def __init__(self, data: Any = None, transform: Callable[[Any], Any] | None = None) -> None:
        self._transform = transform or as_tensor
        self._numbers = itertools.count()
        self._items: dict[str, Item] = {}
        self._uploads: list[str] = []
        for name, load in _read(data, self._image):
            self._add(name, load)

    def _add(self, name: str, load: Callable[[], Any]) -> Item:
        item = Item(str(next(self._numbers)), name, load)
        self._items[item.id] = item
        return item

    def _image(self, source: bytes | Any) -> Any:
        image = read_image(source) if isinstance(source, bytes) else source
        return batched(self._transform(image))

    def upload(self, name: str, content: bytes) -> Item:
        """A new image; what cannot be read is refused now. The oldest of many is forgotten."""
        inputs = self._image(content)
        item = self._add(name[:200] or "image", lambda: inputs)
        self._uploads.append(item.id)
        if len(self._uploads) > MOST_UPLOADS:
            del self._items[self._uploads.pop(0)]
        return item

    def __getitem__(self, id: str) -> Item:
        try:
            return self._items[id]
        except (KeyError, TypeError):
            raise QuestionError("no such input", got=repr(id)[:80], expected="one of the list") from None

    def listed(self) -> list[dict[str, str]]:
        """What the page lists."""
        return [{"id": item.id, "name": item.name} for item in self._items.values()]


def _read(data: Any, image: Callable[[Any], Any]) -> list[tuple[str, Callable[[], Any]]]:
    """Names and loaders of the user's data."""
    if data is None:
        return []
    if isinstance(data, str | os.PathLike):
        return _folder(Path(data), image)
    if isinstance(data, Mapping):
        return [("input", lambda: data)]
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise QuestionError(
            "not a collection of inputs", got=type(data).__name__, where="nrm.explore",
            expected="a folder, a tensor with samples first, a list or a data set",
        )  # fmt: skip
    count = min(len(data), MOST_ITEMS)
    if isinstance(data, Tensor):
        return [(f"sample {i}", _sample(data, i)) for i in range(count)]
    return [_entry(data, i, image) for i in range(count)]


def _sample(data: Tensor, i: int) -> Callable[[], Any]:
    return lambda: data[i : i + 1]


def _entry(data: Any, i: int, image: Callable[[Any], Any]) -> tuple[str, Callable[[], Any]]:
    def load() -> Any:
        entry = data[i]
        entry = entry[0] if isinstance(entry, tuple | list) else entry  # a data set's entries come with their class
        if isinstance(entry, str | os.PathLike):
            return image(_content(Path(entry)))
        return image(entry) if hasattr(entry, "convert") else batched(entry)

    named = isinstance(data, list | tuple) and isinstance(data[i], str | os.PathLike)
    return (Path(data[i]).name if named else f"sample {i}"), load


def _folder(path: Path, image: Callable[[Any], Any]) -> list[tuple[str, Callable[[], Any]]]:
    if not path.exists():
        raise QuestionError("there is no such folder", got=str(path), where="nrm.explore")
    found = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not found:
        raise QuestionError(
            "the folder has no images", got=str(path), expected=", ".join(SUFFIXES), where="nrm.explore"
        )
    home = path if path.is_dir() else path.parent
    return [(p.relative_to(home).as_posix(), _file(p, image)) for p in found[:MOST_ITEMS]]


def _file(path: Path, image: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: image(_content(path))


def _content(path: Path) -> bytes:
    if path.stat().st_size > MOST_BYTES:
        raise QuestionError("the image is too large", got=path.name, expected=f"at most {MOST_BYTES >> 20} MiB")
    return path.read_bytes()


def read_image(content: bytes) -> Any:
    """An RGB picture, upright, from the bytes of a file; nothing is decoded before its size is known."""
    with extra("viz", "nrm.explore"):
        from PIL import Image, ImageOps
    if len(content) > MOST_BYTES:
        raise QuestionError("the image is too large", expected=f"at most {MOST_BYTES >> 20} MiB")
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        if image.width * image.height > MOST_PIXELS:
            raise QuestionError(
                "the image has too many pixels", got=f"{image.width} x {image.height}",
                expected=f"at most {MOST_PIXELS:,}",
            )  # fmt: skip
        return ImageOps.exif_transpose(image).convert("RGB")
    except NrmError:
        raise
    except Exception as error:  # a broken file can fail in any way
        raise QuestionError(
            "the image cannot be read", got=type(error).__name__, expected=f"a picture in {', '.join(FORMATS)}"
        ) from error


def as_tensor(image: Any) -> Tensor:
    """An image as it is: ``(1, 3, H, W)`` with values from 0 to 1. The transform where none is given."""
    return torch.from_numpy(np.array(image, dtype=np.float32) / 255).permute(2, 0, 1)[None]


def batched(inputs: Any) -> Any:
    """Inputs with a batch of one; pictures ``(C, H, W)`` and rows get their sample axis."""
    return inputs[None] if isinstance(inputs, Tensor) and inputs.ndim in (1, 3) else inputs

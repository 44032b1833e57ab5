"""What is explained: images, folders of them, tensors in files, texts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nrm.cli.imported import describe
from nrm.cli.models import LoadedModel
from nrm.errors import InputError, NrmError, readable
from nrm.explorer import batched
from nrm.extras import extra
from nrm.files import (
    SUFFIXES,
    TENSORS,
    TEXTS,
    files_below,
    holds_tensors,
    read_image,
    read_tensors,
    read_text,
    token_names,
    tokenize,
)
from nrm.jobs import on_device
from nrm.measure import WORDS

STANDARD = "-"
"""The input that is the standard input."""
PICTURES = (b"\x89PNG", b"\xff\xd8\xff", b"BM", b"GIF8", b"II*\0", b"MM\0*")
"""What the files of pictures begin with, but for WebP and PPM."""


class InputSample(NamedTuple):
    """The inputs of one sample, a batch of one, and the texts of its tokens if it is a text that was read."""

    inputs: Any
    tokens: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class NamedInput:
    """Something to explain, by name. What a folder holds is read when it is asked for, everything else at once."""

    name: str
    load: Callable[[], InputSample]


def read_inputs(loaded: LoadedModel, given: Sequence[str], *, batch: bool | None = None) -> list[NamedInput]:
    """The items that the arguments of a command name: files, folders, and texts for models that read them.

    ``-`` is the standard input: an image, tensors, a text, or for other models the names of files, one per line.
    A file of a tensor holds one sample, or several along its first axis: as ``batch`` says, else by its axes (one and
    three are those of a single sample). Several tensors in one file are the arguments of the model by name.
    """
    items = [item for text in given for item in _items(loaded, text, batch)]
    if not items:
        raise InputError("nothing to explain", expected="an image, a folder, a file of tensors or a text")
    return items


def read_references(loaded: LoadedModel, given: Sequence[str], batch: bool | None, many: bool) -> Any:
    """The reference that ``--against`` names, or the list of several, if a command takes ``many``."""
    if len(given) == 1:
        return _read_reference(loaded, given[0], batch)
    if not many:
        raise InputError(
            "this command takes one reference", got=" ".join(f"--against {text}" for text in given), expected="one",
            hint="query, flows, layers and check average over several",
        )  # fmt: skip
    return [_read_reference(loaded, text, batch) for text in given]


def _read_reference(loaded: LoadedModel, text: str, batch: bool | None) -> Any:
    """A reference: a word, or an input in the form of the others, a batch of one."""
    if text in WORDS:
        return text
    try:
        found = read_inputs(loaded, [text], batch=batch)
    except NrmError as error:
        error.expected = error.expected or f"{' or '.join(WORDS)}, or an input"
        raise error.at("--against") from None
    if len(found) > 1:
        raise InputError(
            "a reference is one input", got=f"--against {text}: {len(found)} inputs", expected="one for all inputs",
            hint="--against for each of several: query, flows, layers and check average over them",
        )  # fmt: skip
    return found[0].load().inputs


def _items(loaded: LoadedModel, text: str, batch: bool | None) -> Iterator[NamedInput]:
    if text == STANDARD:
        yield from _standard(loaded, sys.stdin.buffer.read(), batch)
        return
    path = Path(text)
    suffix = path.suffix.lower()
    try:
        there = path.exists()
    except OSError:  # a long text is no name of a file
        there = False
    if there and path.is_dir():
        yield from _folder(loaded, path, batch)
    elif suffix in (*TENSORS, *TEXTS, *SUFFIXES) or there:
        if not there:
            raise InputError("no such file", got=text)
        yield from _file(loaded, path, batch)
    else:
        sample = _tokens(loaded, text)
        yield NamedInput(text, lambda: sample)


def _standard(loaded: LoadedModel, content: bytes, batch: bool | None) -> Iterator[NamedInput]:
    """What comes in by the standard input, known by its first bytes."""
    if not content:
        raise InputError("the standard input is empty", got=STANDARD, expected="an image, tensors, a text, or names")
    if holds_tensors(content):
        yield from _tensor_items(_samples_of(read_tensors(content, STANDARD), STANDARD, loaded, batch), STANDARD)
    elif content.startswith(PICTURES) or content[8:12] == b"WEBP":
        yield NamedInput(STANDARD, _keep(_picture(loaded, content, STANDARD)))
    else:
        text = _decoded(content)
        if loaded.tokenizer is not None:
            yield NamedInput(STANDARD, _keep(_tokens(loaded, text.strip())))
        else:
            yield from (item for line in text.splitlines() if line.strip() for item in _items(loaded, line, batch))


def _decoded(content: bytes) -> str:
    """A text, or names of files; those need not be UTF-8."""
    text = os.fsdecode(content)
    if "\0" in text:
        known = ", ".join((*SUFFIXES, *TENSORS))
        raise InputError("data of an unknown kind", got="the standard input", expected=f"{known}, a text, or names")
    return text


def _tensor_items(samples: Sequence[InputSample], name: str) -> Iterator[NamedInput]:
    for i, sample in enumerate(samples):
        yield NamedInput(name if len(samples) == 1 else f"{name}[{i}]", _keep(sample))


def _file(loaded: LoadedModel, path: Path, batch: bool | None) -> Iterator[NamedInput]:
    """The items of one file, read now."""
    suffix, name = path.suffix.lower(), readable(path.name)
    if suffix in TENSORS:
        yield from _tensor_items(tensor_samples(path, loaded, batch), name)
    elif suffix in TEXTS:
        yield NamedInput(name, _keep(_tokens(loaded, read_text(path))))
    elif suffix in SUFFIXES:
        yield NamedInput(name, _keep(_picture(loaded, path, name)))
    else:
        known = ", ".join((*SUFFIXES, *TENSORS, *TEXTS))
        raise InputError("a file of an unknown kind", got=path.name, expected=known)


def _keep(sample: InputSample) -> Callable[[], InputSample]:
    return lambda: sample


def _folder(loaded: LoadedModel, folder: Path, batch: bool | None) -> Iterator[NamedInput]:
    """The files of a folder and below, in the order of their names; each is read when its turn comes."""
    known = {*SUFFIXES, *TENSORS, *(TEXTS if loaded.tokenizer is not None else ())}
    files = files_below(folder, known)
    if not files:
        raise InputError("the folder has nothing to explain", got=str(folder), expected=", ".join(sorted(known)))
    for file in files:
        path, name = folder / file, readable(file)
        if path.suffix.lower() in SUFFIXES:
            yield NamedInput(name, lambda path=path: _picture(loaded, path, path.name))  # type: ignore[misc]
        else:
            yield from (
                NamedInput(f"{name}{item.name.removeprefix(readable(path.name))}", item.load)
                for item in _file(loaded, path, batch)
            )


def _picture(loaded: LoadedModel, source: bytes | Path, name: str) -> InputSample:
    """The sample of an image, of its file or its bytes."""
    if loaded.transform is None:
        raise InputError("the model takes no images", got=name, where=loaded.name)
    try:
        image = read_image(source)
    except NrmError as error:
        raise error.at(name) from None
    return InputSample(on_device(as_batch(transformed(loaded, image, name)), loaded.model))


def transformed(loaded: LoadedModel, image: Any, where: str) -> Any:
    """A sample of an image; what goes wrong in a transform of the user's is said in its words."""
    assert loaded.transform is not None
    try:
        return loaded.transform.of(image)
    except NrmError:
        raise
    except Exception as error:  # code of the user's can fail in any way
        what = f"the transform ({loaded.transform.text}) failed"
        raise InputError(what, where=where, got=describe(error)) from error


def as_batch(sample: Any) -> Any:
    """A batch of one."""
    if isinstance(sample, Mapping):
        return {name: value[None] for name, value in sample.items()}
    return batched(sample)


# ---- tensors and texts -----------------------------------------------------------------------------------------


def tensor_samples(path: Path, loaded: LoadedModel, batch: bool | None) -> list[InputSample]:
    """The samples of a file of tensors, one by one."""
    return _samples_of(read_tensors(path, path.name), path.name, loaded, batch)


def _samples_of(
    found: Tensor | dict[str, Tensor], name: str, loaded: LoadedModel, batch: bool | None
) -> list[InputSample]:
    """Tensors as samples, one by one."""
    if isinstance(found, Tensor):
        single = found.ndim in (0, 1, 3) if batch is None else not batch
        whole = found[None] if single else found
        if loaded.tokens:
            return [_token_ids(loaded, whole[i : i + 1], name) for i in range(len(whole))]
        parts: list[Any] = [whole[i : i + 1] for i in range(len(whole))]
    else:
        counts = {len(value) if value.ndim else 0 for value in found.values()}
        if len(counts) != 1 or 0 in counts:
            expected = "tensors with the same number of samples along their first axis"
            raise InputError("the tensors do not belong together", got=name, expected=expected)
        parts = [{key: value[i : i + 1] for key, value in found.items()} for i in range(counts.pop())]
    if not parts:
        raise InputError("the file has no samples", got=name)
    return [InputSample(on_device(part, loaded.model)) for part in parts]


def _token_ids(loaded: LoadedModel, ids: Tensor, name: str) -> InputSample:
    if ids.is_floating_point() or ids.ndim != 2:
        raise InputError("not a list of token ids", got=f"{name}: {ids.dtype}, shape {tuple(ids.shape)}")
    ids = ids.long()
    size = getattr(loaded.model.config, "vocab_size", None)
    if size is not None and not 0 <= int(ids.min()) <= int(ids.max()) < size:
        got, expected = f"{name}: {int(ids.min())} to {int(ids.max())}", f"0 to {size - 1}"
        raise InputError("no such token", got=got, expected=expected)
    inputs = {"input_ids": ids}
    return InputSample(on_device(inputs, loaded.model), token_names(loaded.tokenizer, inputs))


def _tokens(loaded: LoadedModel, text: str) -> InputSample:
    if loaded.tokenizer is None:
        if loaded.tokens:
            raise InputError(
                "the model has no tokenizer to read a text with", got=repr(text[:60]), where=loaded.name,
                expected="token ids", hint="numpy.save('ids.npy', [1, 9038, 2501]) and ids.npy as the input",
            )  # fmt: skip
        raise InputError("no such file or folder", got=repr(text[:60]))
    made = tokenize(loaded.tokenizer, text)
    return InputSample(on_device(dict(made), loaded.model), token_names(loaded.tokenizer, made))


def example_input(loaded: LoadedModel, shape: Sequence[int] | None = None) -> tuple[Any, str]:
    """A batch of one made-up sample, for what does not depend on its values, and words for it."""
    generator = torch.Generator().manual_seed(0)
    if shape is not None:
        made = torch.rand((1, *shape), generator=generator)
        return on_device(made, loaded.model), f"noise of shape {'x'.join(map(str, shape))}"
    if loaded.tokens:
        return on_device({"input_ids": torch.arange(1, 9)[None]}, loaded.model), "eight tokens"
    pixels = (torch.rand((256, 256, 3), generator=generator) * 255).to(torch.uint8).numpy()
    sample = as_batch(transformed(loaded, _as_image(pixels), "an image of noise"))
    return on_device(sample, loaded.model), "an image of noise"


def _as_image(pixels: Any) -> Any:
    with extra("viz", "images"):
        from PIL import Image
    return Image.fromarray(pixels)

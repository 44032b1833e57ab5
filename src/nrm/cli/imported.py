"""Objects of the user's own code by name, and packages that may be absent or broken."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nrm.errors import InputError, NrmError
from nrm.extras import extra

KINDS = "torchvision:NAME, timm:NAME, hf:NAME_OR_FOLDER, or package.module:factory"
"""How models are named."""


def import_named(name: str, what: str) -> Any:
    """The object ``package.module:attribute``; modules of the working folder are found as well."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InputError(f"not a {what}", got=name, expected="package.module:name")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except NrmError:
        raise
    except Exception as error:  # code of the user's can fail in any way
        raise InputError(f"the {what} cannot be imported", where=name, got=describe(error)) from error
    return found


def describe(error: BaseException) -> str:
    """What happened, and the last line of code it happened in."""
    text = (str(error).strip().splitlines() or [""])[0][:200]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}"


@contextmanager
def using(name: str, needed_by: str) -> Iterator[None]:
    """As :func:`nrm.extras.extra`, and clear where torchvision is installed but was built for another torch."""
    try:
        with extra(name, needed_by):
            yield
    except (RuntimeError, ImportError) as error:
        if "torchvision::nms" not in _story(error):
            raise
        raise NrmError(
            "torchvision does not fit torch", where=needed_by, got="its operators cannot be loaded",
            expected="builds of the two that belong together (both for CPU, or both for the same CUDA)",
            hint="install torch and torchvision in one command, from the same index",
        ) from error  # fmt: skip


def _story(error: BaseException | None) -> str:
    """The texts of an error and of those that caused it."""
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(texts)

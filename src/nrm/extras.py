"""Optional extras: what the core does not need is imported where it is used, and its absence has one clear text.

``import nrm`` needs torch, numpy, safetensors and tqdm only. Everything else is an extra of the package::

    with extra("viz", "nrm.plot.heatmap"):
        import matplotlib.pyplot as plt
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nrm.errors import NrmError

EXTRAS = (
    "viz", "cluster", "vision", "timm", "graph", "molecules", "text", "large", "query", "store", "table", "ray", "web",
    "cli", "shap",
)  # fmt: skip


class MissingExtraError(NrmError, ImportError):
    """A package of an optional extra is not installed; the text says which one and how to get it."""


@contextmanager
def extra(name: str, needed_by: str) -> Iterator[None]:
    """Import packages of the extra ``name`` inside this block; a missing one becomes a :class:`MissingExtraError`.

    An installed package that fails for another reason keeps its own error.

    >>> with extra("viz", "nrm.plot.heatmap"):
    ...     import a_package_that_is_absent
    Traceback (most recent call last):
    ...
    nrm.extras.MissingExtraError: an optional package is not installed
      where:    nrm.plot.heatmap
      got:      no module named 'a_package_that_is_absent'
      expected: the extra 'viz' of nrm
      try:      pip install "nrm[viz]"
    """
    if name not in EXTRAS:
        raise ValueError(f"nrm has no extra {name!r}; it has {', '.join(EXTRAS)}")
    try:
        yield
    except ModuleNotFoundError as error:
        missing = error.name or str(error)
        if missing.partition(".")[0] == "nrm":
            raise
        raise MissingExtraError(
            "an optional package is not installed",
            where=needed_by,
            got=f"no module named {missing!r}",
            expected=f"the extra {name!r} of nrm",
            hint=f'pip install "nrm[{name}]"',
        ) from error

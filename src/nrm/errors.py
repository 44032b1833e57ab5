"""Every complaint of the library has one form: what, where, got, expected, try.

The inner code knows *what* went wrong; the public verb that called it knows *where*. An error can
therefore be completed on its way out with :meth:`NrmError.at`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def readable(name: str) -> str:
    r"""The name of a file as text that can be printed and written, whatever its bytes are.

    >>> print(readable("caf\udce9.png"), readable("café.png"))
    caf\xe9.png café.png
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


class NrmError(Exception):
    """A complaint with a cause and a remedy.

    >>> error = NrmError("unknown layer", got="'conv9'", expected="a layer of this capture", hint="R.layers")
    >>> print(error)
    unknown layer
      got:      'conv9'
      expected: a layer of this capture
      try:      R.layers
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        got: str | None = None,
        expected: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.got = got
        self.expected = expected
        self.hint = hint

    def at(self, where: str) -> NrmError:
        """The error itself, with its place filled in unless it already has one."""
        self.where = self.where or where
        return self

    def __str__(self) -> str:
        parts = (("where", self.where), ("got", self.got), ("expected", self.expected), ("try", self.hint))
        lines = [f"  {f'{name}:':<9} {readable(text)}" for name, text in parts if text]
        return "\n".join([self.what, *lines])


class CaptureError(NrmError):
    """The model could not be recorded: an op without a rule, a lost path, an input that cannot be explained."""


class RuleError(NrmError):
    """A rule does not fit: bad parameters, or an op it cannot be applied to."""


class QuestionError(NrmError):
    """A question that does not fit the measure: unknown layer, wrong shape, index out of range, bad target."""


class MassError(NrmError):
    """Mass went where it must not: into sinks, constants made from the input, an output that cannot be normalized."""


class PrecisionError(NrmError):
    """Rounding has eaten the result; the numbers would be noise."""


class MemoryLimitError(NrmError):
    """An answer needs more memory than the measure's bound; nothing was allocated."""


class ResultFileError(NrmError):
    """A result file that cannot be read: not one of ours, damaged, or of another schema version."""


class JobError(NrmError):
    """A dataset job that cannot go on: too many bad samples, a store of another job, a full disk, lost workers."""


class InputError(NrmError):
    """Something handed to a command that cannot be used: a model, a file of weights, an input, names, an option."""


class NrmWarning(UserWarning):
    """A number that deserves a second look: mass in sinks, cancellation, a near-zero condition."""


def warn(text: str, category: type[NrmWarning] | None = None) -> None:
    """Warns about the line outside of this package that asked."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("nrm."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category or NrmWarning, stacklevel=level)


class CostWarning(NrmWarning):
    """A table that takes long: what it will cost, how it is computed, and which questions are cheaper."""


def unknown_option(name: str, value: object, known: Iterable[str], of: str = "nrm.measure") -> QuestionError:
    """The refusal of an option that a function does not have, with the nearest one that it has.

    >>> print(unknown_option("rule", "lrp-0", ["bias", "rules"]))
    unknown option 'rule'
      got:      rule='lrp-0'
      expected: an option of nrm.measure: bias, rules
      try:      rules=
    """
    names = sorted(known)
    near = ["target"] if name == "targets" else difflib.get_close_matches(name, names, n=1)
    return QuestionError(
        f"unknown option {name!r}", got=f"{name}={value!r}"[:120], expected=f"an option of {of}: {', '.join(names)}",
        hint=f"{near[0]}=" if near else None,
    )  # fmt: skip


def names_options(function: Callable[P, T]) -> Callable[P, T]:
    """A function that refuses keywords it does not have in the form of every complaint, before it does anything.

    Python's own ``TypeError`` does not say what is meant: ``targets=`` is ``target=``.
    """
    known = inspect.signature(function).parameters
    options = [name for name, one in known.items() if one.kind is inspect.Parameter.KEYWORD_ONLY]

    @functools.wraps(function)
    def door(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in known:
                raise unknown_option(name, kwargs[name], options, f"nrm.{function.__name__}")
        return function(*args, **kwargs)

    return door

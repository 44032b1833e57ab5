"""How much memory an answer may take."""

from __future__ import annotations

import os
import re

from nrm.errors import QuestionError

_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def memory_bound(memory: str | int) -> int:
    """A bound in bytes from a number, a text such as ``"2 GiB"``, or ``"auto"``: a third of what is free, up to 4 GiB.

    >>> memory_bound("2 GiB")
    2147483648
    """
    if memory == "auto":
        return min(4 * 2**30, max(2**28, _free() // 3))
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", memory.lower()) if isinstance(memory, str) else None
    if found is None or found[2] not in _UNITS:
        raise QuestionError("not an amount of memory", got=repr(memory), expected="bytes, '512 MiB', '2 GiB' or 'auto'")
    return int(float(found[1]) * _UNITS[found[2]])


def _free() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 6 * 2**30

"""One budget of memory: how it is read, how many things fit into it, and the complaint about what does not."""

from __future__ import annotations

import os
import re

from nrm.errors import MemoryLimitError, QuestionError
from nrm.numbers import size_text

ALIVE = 8
"""A thing that is computed is alive about so many times at once: what it is made of, what it becomes, and what the
allocator leaves in between."""

KEPT = 8
"""Messages that later questions may need are kept in one part in so many of the budget."""

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


def fitting(memory: int, nbytes: int) -> int:
    """How many things of so many bytes can be computed at once; at least one.

    >>> fitting(1000, 10), fitting(1000, 500)
    (12, 1)
    """
    return max(1, memory // (ALIVE * max(1, nbytes)))


def refuse_larger(what: str, nbytes: int, memory: int, hint: str) -> None:
    """Refuses what is larger than the memory bound, before anything of it is allocated."""
    if nbytes > memory:
        raise MemoryLimitError(
            f"{what} than the memory bound", got=size_text(nbytes), expected=f"at most {size_text(memory)}", hint=hint
        )

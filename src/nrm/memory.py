"""One budget of memory: how it is read, how many things fit into it, and the complaint about what does not."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from pathlib import Path

from nrm.errors import MemoryLimitError, QuestionError
from nrm.numbers import size_text

ALIVE = 8
"""A thing that is computed is alive about so many times at once: what it is made of, what it becomes, and what the
allocator leaves in between."""

KEPT = 8
"""Messages that later questions may need are kept in one part in so many of the budget."""

HELD_BACK = 2**29
"""So many freed bytes the allocator keeps for the next pass."""

_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}


def memory_bound(memory: str | int) -> int:
    """A bound in bytes from a number, a text such as ``"2 GiB"``, or ``"auto"``: a third of what is free, up to 4 GiB.

    >>> memory_bound("2 GiB")
    2147483648
    """
    if memory == "auto":
        return min(4 * 2**30, max(2**28, available() // 3))
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", memory.lower()) if isinstance(memory, str) else None
    if found is None or found[2] not in _UNITS:
        raise QuestionError("not an amount of memory", got=repr(memory), expected="bytes, '512 MiB', '2 GiB' or 'auto'")
    return int(float(found[1]) * _UNITS[found[2]])


def available() -> int:
    """Bytes that this process may still take, as the system says: also inside a container with a limit of its own."""
    free = [room for read in (_of_the_machine, _of_the_container) if (room := read()) is not None]
    return min(free, default=6 * 2**30)


@functools.cache
def keep_pages() -> bool:
    """Lets the allocator of Linux keep freed memory for the next pass, up to 512 MiB, from now on; whether it does.

    All values of a pass are freed together. Left alone, glibc gives them back to the system, which hands out fresh
    pages for those of the next one: half of the time of capturing a small network. Nothing is changed where the
    environment says how the allocator works (``MALLOC_TRIM_THRESHOLD_=131072`` is how it begins).
    """
    settings = [name for name in os.environ if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"]
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" and not settings else None
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_IN_HEAP) and mallopt(_TRIM_THRESHOLD, HELD_BACK))


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of settings, from ``malloc.h``."""
_LARGEST_IN_HEAP = 2**25
"""What glibc comes to by itself: larger blocks are never held back."""


def _of_the_machine() -> int | None:
    lines = _lines("/proc/meminfo")
    found = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    if found is not None:
        return 1024 * int(found)
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _of_the_container() -> int | None:
    """What a control group of Linux leaves; files that it has cached can be given back."""
    group = _group()
    if group is None:
        return None
    limit, now, cached = (_lines(path) for path in group)
    given = next((int(line.split()[1]) for line in cached if INACTIVE.match(line)), 0)
    return max(0, int(limit[0]) - int(now[0]) + given) if limit and limit[0].isdigit() and now else None


@functools.cache
def _group() -> tuple[str, ...] | None:
    """The files of this process's control group, if it has a limit."""
    for group in GROUPS:
        limit = _lines(group[0])
        if limit and limit[0].isdigit() and int(limit[0]) < NO_LIMIT:
            return group
    return None


NO_LIMIT = 2**60
"""Groups without a limit have one that is larger."""


GROUPS = [tuple(f"/sys/fs/cgroup/{name}" for name in names) for names in (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"))]  # fmt: skip
"""The files of a control group, of either version: its limit, what it has taken, and what of that is cached."""

INACTIVE = re.compile(r"(total_)?inactive_file ")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


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

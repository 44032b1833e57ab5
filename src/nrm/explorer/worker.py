"""One thread that computes, one job after the other; the page asks how far it is, and may cancel.

Every call of torch in a job is a moment to stop: a cancelled job ends there, and one that has patience lets those that
came after it go first, so that a click is answered while a large picture is still being made.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

from nrm.errors import NrmError

KEPT = 64
"""How many jobs are remembered."""


class CancelledError(Exception):
    """The job is not wanted any more."""


class PageJob:
    """Work in parts: what came out so far, and how it stands. With ``patient``, later jobs may go first."""

    def __init__(self, id: str, work: Callable[[PageJob], None]) -> None:
        self.id, self._work = id, work
        self.state, self.step = "waiting", "waiting for its turn"
        self.parts: list[dict[str, Any]] = []
        self.error = ""
        self.patient = False
        self._cancelled = threading.Event()
        self._begun, self._seconds = time.monotonic(), 0.0

    def add(self, part: dict[str, Any]) -> None:
        """Another part is there for the page."""
        self.check()
        self.parts.append(part)

    def tell(self, step: str, seconds: float = 0.0) -> None:
        """What is being done now, and how long it is likely to take (0: not known)."""
        self.check()
        self.step, self._begun, self._seconds = step, time.monotonic(), seconds

    def check(self) -> None:
        """Stops the work if it was cancelled."""
        if self._cancelled.is_set():
            raise CancelledError

    def cancel(self) -> None:
        """Asks the work to stop at its next check; what has not begun is over at once."""
        self._cancelled.set()
        if self.state == "waiting":
            self.state = "cancelled"

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ("done", "failed", "cancelled")

    def run(self) -> None:
        """Does the work; every failure becomes a text."""
        try:
            self.check()
            self.state = "running"
            self._work(self)
            self.state = "done"
        except CancelledError:
            self.state = "cancelled"
        except NrmError as error:
            self.error, self.state = str(error), "failed"
        except Exception as error:
            logging.getLogger("nrm.explorer").exception("a job failed")
            self.error, self.state = f"{type(error).__name__}: {error}", "failed"

    def has_news(self, since: int) -> bool:
        """Whether the page should be told something."""
        return self.over or len(self.parts) > since

    def news(self, since: int) -> dict[str, Any]:
        """What the page does not know yet. The state is read first: parts of a finished job are all there."""
        state = self.state
        return {
            "state": state, "step": self.step, "error": self.error, "parts": self.parts[max(0, since) :],
            "elapsed": time.monotonic() - self._begun, "seconds": self._seconds,
        }  # fmt: skip


class _Heeding(TorchFunctionMode):
    """Calls ``heed`` before every call of torch in this thread."""

    def __init__(self, heed: Callable[[], None]) -> None:
        super().__init__()
        self._heed = heed

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._heed()
        return func(*args, **(kwargs or {}))


class Worker:
    """The queue of jobs and its thread."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._jobs: dict[str, PageJob] = {}
        self._queue: queue.Queue[PageJob | None] = queue.Queue()
        self._idle: deque[PageJob] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="nrm-explorer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[PageJob], None]) -> PageJob:
        """A new job at the end of the queue."""
        job = self._known(PageJob(f"j{next(self._numbers)}", work))
        self._queue.put(job)
        return job

    def submit_idle(self, work: Callable[[PageJob], None]) -> PageJob:
        """Work that nobody waits for: done when nothing else is there, and with patience. Called from a job."""
        job = self._known(PageJob(f"i{next(self._numbers)}", work))
        job.patient = True
        self._idle.append(job)
        return job

    def _known(self, job: PageJob) -> PageJob:
        """Remembers a job; the oldest of many is forgotten."""
        self._jobs[job.id] = job
        while len(self._jobs) > KEPT:
            self._jobs.pop(next(iter(self._jobs))).cancel()
        return job

    def __getitem__(self, id: str) -> PageJob:
        return self._jobs[id]

    def close(self) -> None:
        """Cancels everything and ends the thread."""
        self._closing = True
        for job in [*self._jobs.values(), *self._idle]:
            job.cancel()
        self._queue.put(None)
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            self._do(job)

    def _next(self) -> PageJob | None:
        if self._idle and self._queue.empty():
            return self._idle.popleft()
        return self._queue.get()

    def _do(self, job: PageJob) -> None:
        with _Heeding(lambda: self._heed(job)):
            job.run()

    def _heed(self, job: PageJob) -> None:
        """Ends a job that is not wanted any more, and lets others go first if it has patience."""
        job.check()
        while job.patient and not self._closing:
            try:
                other = self._queue.get_nowait()
            except queue.Empty:
                return
            if other is None:  # the end, which the thread itself waits for
                self._queue.put(None)
                raise CancelledError
            self._do(other)
            job.check()

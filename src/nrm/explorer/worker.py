"""One thread that computes, one job after the other; the page asks how far it is, and may cancel."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from nrm.errors import NrmError

KEPT = 64
"""How many jobs are remembered."""


class CancelledError(Exception):
    """The job is not wanted any more."""


class Job:
    """Work in parts: what came out so far, and how it stands."""

    def __init__(self, id: str, work: Callable[[Job], None]) -> None:
        self.id, self._work = id, work
        self.state, self.step = "waiting", "waiting for its turn"
        self.parts: list[dict[str, Any]] = []
        self.error = ""
        self._cancelled = threading.Event()

    def add(self, part: dict[str, Any]) -> None:
        """Another part is there for the page."""
        self.check()
        self.parts.append(part)

    def tell(self, step: str) -> None:
        """What is being done now."""
        self.check()
        self.step = step

    def check(self) -> None:
        """Stops the work if it was cancelled."""
        if self._cancelled.is_set():
            raise CancelledError

    def cancel(self) -> None:
        """Asks the work to stop at its next check."""
        self._cancelled.set()

    def run(self) -> None:
        """Does the work; every failure becomes a text."""
        self.state = "running"
        try:
            self.check()
            self._work(self)
            self.state = "done"
        except CancelledError:
            self.state = "cancelled"
        except NrmError as error:
            self.error, self.state = str(error), "failed"
        except Exception as error:
            logging.getLogger("nrm.explorer").exception("a job failed")
            self.error, self.state = f"{type(error).__name__}: {error}", "failed"

    def news(self, since: int) -> dict[str, Any]:
        """What the page does not know yet. The state is read first: parts of a finished job are all there."""
        state = self.state
        return {"state": state, "step": self.step, "error": self.error, "parts": self.parts[max(0, since) :]}


class Worker:
    """The queue of jobs and its thread."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._jobs: dict[str, Job] = {}
        self._queue: queue.Queue[Job | None] = queue.Queue()
        self._now: Job | None = None
        self._thread = threading.Thread(target=self._run, name="nrm-explorer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Job], None]) -> Job:
        """A new job at the end of the queue."""
        job = Job(f"j{next(self._numbers)}", work)
        self._jobs[job.id] = job
        while len(self._jobs) > KEPT:
            self._jobs.pop(next(iter(self._jobs))).cancel()
        self._queue.put(job)
        return job

    def __getitem__(self, id: str) -> Job:
        return self._jobs[id]

    def beat(self, done: int, total: int | None) -> None:
        """Progress of a question of the job that runs now, which stops here if it was cancelled."""
        if self._now is not None:
            self._now.check()

    def close(self) -> None:
        """Cancels everything and ends the thread."""
        for job in self._jobs.values():
            job.cancel()
        self._queue.put(None)
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            self._now = job
            job.run()
            self._now = None

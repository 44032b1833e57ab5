"""Who does the shards: this process, several processes, or Ray. All run the same function and write the same parts."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from nrm.errors import JobError, QuestionError
from nrm.extras import extra
from nrm.jobs.answers import describe
from nrm.jobs.job import Job, remember, run_shard
from nrm.jobs.parts import ShardSpan, write_part
from nrm.jobs.tally import KnownBest, Tally
from nrm.search import read_count

ENGINES = ("local", "ray")
RETRIES = 3
Tick = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class Task:
    """One job as every worker gets it; with a folder, shards are written there, else they are given back.

    ``known`` is what this worker has seen so far: shards keep nothing that cannot be among the best beside it.
    """

    job: Job
    parts: Path | None
    known: KnownBest = field(default_factory=dict)

    def run(self, shard: int, tick: Tick = lambda n: None) -> Done:
        """Does one shard."""
        tally = run_shard(self.job, shard, tick, self.known)
        if self.parts is not None:
            write_part(self.parts, ShardSpan(shard, shard + 1), tally, to_stay=len(self.job.shards) == 1)
        remember(self.known, tally)
        return Done(shard, tally.errors, len(tally.samples["sample"]), tally if self.parts is None else None)


@dataclass(frozen=True, eq=False)
class Done:
    """A finished shard: its errors, the number of its samples, and its tally unless that was written."""

    shard: int
    errors: list[tuple[int, str]]
    samples: int
    tally: Tally | None


def run_here(task: Task, shards: Sequence[int], tick: Tick) -> Iterator[Done]:
    """One shard after the other in this process."""
    for shard in shards:
        yield task.run(shard, tick)


def run_processes(task: Task, shards: Sequence[int], tick: Tick, workers: int) -> Iterator[Done]:
    """Shards in processes of this machine. A process that dies is replaced, and its shard done again."""
    packed = _pack(task)
    left = list(shards)
    for attempt in range(RETRIES + 1):
        try:
            for done in _run_pool(packed, left, workers):
                left.remove(done.shard)
                tick(done.samples)
                yield done
            return
        except BrokenProcessPool as error:
            if attempt == RETRIES:
                raise JobError(
                    "workers die again and again", got=describe(error), expected="processes that live",
                    hint="they may run out of memory: fewer workers, or a smaller batch_size",
                ) from error  # fmt: skip


def _run_pool(packed: bytes, shards: Sequence[int], workers: int) -> Iterator[Done]:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(packed,))
    try:
        for future in as_completed([pool.submit(_do, shard) for shard in shards]):
            yield future.result()
    except BaseException:
        # What is under way is given up: a shard that is not written is done again another time.
        running = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()
        for process in running:
            process.join()
        raise
    pool.shutdown()


def _pack(task: Task) -> bytes:
    try:
        return pickle.dumps(task)
    except Exception as error:
        raise QuestionError(
            "the job cannot be sent to other processes", got=describe(error),
            expected="a model, a data set and options that can be pickled",
            hint="functions at the top of a module instead of lambdas, or workers=1",
        ) from error  # fmt: skip


_packed = b""
_task: Any = None


def _begin(packed: bytes) -> None:
    """A process of the pool: Ctrl-C is its parent's affair, and it does not outlive it."""
    global _packed
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_follow, daemon=True).start()
    _packed = packed


def _follow() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do(shard: int) -> Done:
    global _task
    if _task is None:
        try:
            _task = pickle.loads(_packed)
        except Exception as error:
            raise JobError(
                "a worker cannot read the job", got=describe(error),
                expected="a model and a data set whose modules can be imported there",
            ) from error  # fmt: skip
    done: Done = _task.run(shard)
    return done


class _Actor:
    """A worker of Ray: the task, held once, and on the device that Ray gave it."""

    def __init__(self, task: Task, gpus: float) -> None:
        if gpus:
            inquiry = replace(task.job.inquiry, model=task.job.inquiry.model.to("cuda"))
            task = replace(task, job=replace(task.job, inquiry=inquiry))
        self.task = task

    def run(self, shard: int) -> Done:
        return self.task.run(shard)


def run_ray(task: Task, shards: Sequence[int], tick: Tick, workers: int, gpus: float = 0) -> Iterator[Done]:
    """Shards in actors of Ray: of the cluster this process is connected to, or of a new one on this machine.

    A worker that dies is started again, and its shard done again.
    """
    with extra("ray", "nrm.relmax(engine='ray')"):
        import ray
    cluster: Any = ray
    own = not cluster.is_initialized()
    if own:
        # One more than the workers: something has to be left for Ray itself.
        address = os.environ.get("RAY_ADDRESS")
        local = {} if address else {"num_cpus": workers + 1, "include_dashboard": False}
        cluster.init(address, log_to_driver=False, **local)
    try:
        actor = cluster.remote(num_cpus=1, num_gpus=gpus, max_restarts=RETRIES, max_task_retries=RETRIES)(_Actor)
        held = cluster.put(task)
        free = [actor.remote(held, gpus) for _ in range(min(workers, len(shards)))]
        waiting = list(shards)[::-1]
        running: dict[Any, Any] = {}
        while waiting or running:
            while waiting and free:
                worker = free.pop()
                running[worker.run.remote(waiting.pop())] = worker
            ready, _ = cluster.wait(list(running), num_returns=1)
            free.append(running.pop(ready[0]))
            done: Done = _result(cluster, ready[0])
            tick(done.samples)
            yield done
    finally:
        if own:
            cluster.shutdown()


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except ray.exceptions.RayActorError as error:
        raise JobError("workers of Ray die again and again", got=describe(error), hint="fewer workers") from error


def choose(engine: str, workers: int | None, gpus: float) -> Callable[[Task, Sequence[int], Tick], Iterator[Done]]:
    """The function that does shards with this engine."""
    if engine not in ENGINES:
        raise QuestionError("unknown engine", got=f"engine={engine!r}", expected=" or ".join(map(repr, ENGINES)))
    if workers is not None:
        read_count(workers, "workers", "workers")
    if engine == "ray":
        count = workers or max(1, (os.cpu_count() or 2) - 1)
        return lambda task, shards, tick: run_ray(task, shards, tick, count, gpus)
    if gpus:
        raise QuestionError("gpus are those of Ray's workers", got=f"gpus={gpus}", hint="model.to('cuda')")
    if (workers or 1) == 1:
        return run_here
    return lambda task, shards, tick: run_processes(task, shards, tick, workers or 1)


def default_threads(engine: str, workers: int | None) -> int:
    """Threads of torch for each worker: those of the machine, shared out."""
    count = workers or (1 if engine == "local" else max(1, (os.cpu_count() or 2) - 1))
    return max(1, torch.get_num_threads() // count)

"""What a RelMax job costs per sample, beside the bare questions, and how much two workers help.

python benchmarks/relmax.py [--network small] [--size 96] [--samples 128] [--shard 64] [--workers 2]

Times are of the processor, in one thread, bare questions and shards of the job in turn: a busy machine does not change
them much. Wall-clock rates of workers mean something on an idle machine only; the load is printed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from models import vgg16
from torch import nn

import nrm
from nrm.jobs.engines import Task, run_processes
from nrm.jobs.job import Job
from nrm.jobs.parts import ShardSpan, write_part
from nrm.jobs.store import claim, close

begin_job = importlib.import_module("nrm.jobs.relmax")._plan  # the package has a function of that name

BATCH, RULES = 8, {"rules": "epsilon-plus-flat"}


def small() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)).eval()


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "small": (small, ("8", "11", "13")),
    "vgg16": (vgg16, ("features.24", "features.26", "features.28")),
}


def clock(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """The processor's time for some work, all threads of this process together, and its result."""
    begin = time.process_time()
    found = work(*arguments)
    return time.process_time() - begin, found


class Case:
    """Three layers and the two pair tables between them."""

    def __init__(self, name: str, size: int, samples: int) -> None:
        torch.manual_seed(0)
        make, layers = NETWORKS[name]
        a, b, c = (nrm.layer(layer).channels for layer in layers)
        self.model, self.x = make(), torch.rand(samples, 3, size, size)
        self.questions: tuple[Any, ...] = (a, b, c, (a, b), (b, c))

    def forward(self, part: torch.Tensor) -> None:
        with torch.no_grad():
            self.model(part)

    def bare(self, part: torch.Tensor) -> None:
        with nrm.measure(self.model, part, progress=False, **RULES) as R:
            for question in self.questions:
                R(*question) if isinstance(question, tuple) else R(question)


def plan(case: Case, shard_size: int) -> Job:
    sizes = (40, 200_000, BATCH, shard_size, 0, 1, None)
    return begin_job(case.model, case.x, case.questions, None, "logit", dict(RULES), sizes)[0]


def measure_cost(case: Case, shard_size: int) -> None:
    """The parts of a sample's cost: bare questions and shards of the job in turn."""
    times = dict.fromkeys(("forward pass", "bare questions", "explained by the job", "written", "folded"), 0.0)
    importlib.import_module("pyarrow.parquet")  # once, and no part of a sample's cost
    begin, job = clock(plan, case, shard_size)
    with claim(Path(tempfile.mkdtemp()) / "store", job.facts, 1) as (shelf, _):
        case.bare(case.x[:BATCH])
        task, whole = Task(job, None), len(job.shards) == 1
        for shard in job.shards:
            for part in case.x[shard * shard_size : (shard + 1) * shard_size].split(BATCH):
                times["forward pass"] += clock(case.forward, part)[0]
                times["bare questions"] += clock(case.bare, part)[0]
            spent, done = clock(task.run, shard)
            times["explained by the job"] += spent
            write = partial(write_part, to_stay=whole)
            times["written"] += clock(write, shelf.parts, ShardSpan(shard, shard + 1), done.tally)[0]
        times["folded"] = clock(close, shelf, job.facts)[0]
        size = sum(file.stat().st_size for file in shelf.path.rglob("*") if file.is_file())
    for name, seconds in times.items():
        share = seconds / times["bare questions"]
        print(f"{name:<22} {seconds / len(case.x) * 1e3:9.2f} ms of CPU per sample  {share:6.3f} bare questions")
    whole = sum(times[name] for name in ("explained by the job", "written", "folded"))
    print(f"the job                {whole / times['bare questions']:.3f} bare questions in shards of {shard_size}, "
          f"after {begin:.1f} s to begin; the store has {size / 2**20:.1f} MiB")  # fmt: skip


def measure_workers(case: Case, shard_size: int, workers: int) -> None:
    """Rates of one and of several workers, from the first shard that every worker has finished to the last."""
    rates, costs = [], []
    for count in (1, workers):
        ends: list[float] = []
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        job = plan(case, shard_size)
        task = Task(job, Path(tempfile.mkdtemp()))
        for _ in run_processes(task, list(job.shards), lambda n: None, count):
            ends.append(time.perf_counter())
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        rates.append((len(ends) - count) * shard_size / (ends[-1] - ends[count - 1]))
        costs.append((after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime) / len(case.x))
        print(f"{count} worker(s): {rates[-1]:7.2f} samples/s by the clock, {costs[-1] * 1e3:7.1f} ms of CPU per "
              f"sample with the start of processes; load {os.getloadavg()[0]:.1f}")  # fmt: skip
    by_clock, by_cpu = rates[1] / rates[0], workers * costs[0] / costs[1]
    print(f"{workers} workers over one: {by_clock:.2f} by the clock, {by_cpu:.2f} by CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="small")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--shard", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0, help="compare so many with one instead")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", nrm.NrmWarning)
    case = Case(given.network, given.size, given.samples)
    if given.workers:
        measure_workers(case, given.shard, given.workers)
    else:
        measure_cost(case, given.shard)


if __name__ == "__main__":
    main()

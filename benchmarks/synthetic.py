"""A store of 100,000 samples x 512 channels with simulated relevances: writing, merging, queries, memory.

python benchmarks/synthetic.py [--samples 100000] [--channels 512] [--pairs] [--shard 2048]

With --pairs the blocks are all pairs of channels: of every class the leading pairs are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from run import peak_memory
from torch import nn

import nrm
from nrm.jobs.answers import Answers, Sample, Table
from nrm.jobs.job import remember
from nrm.jobs.leading import ROOM
from nrm.jobs.parts import ShardSpan, write_part
from nrm.jobs.store import claim, close
from nrm.jobs.tally import KnownBest, Limits, Tally

A, B = nrm.layer("1"), nrm.layer("3")
BATCH, K, ROWS, CLASSES = 32, 40, 200_000, 1000


def facts(given: argparse.Namespace) -> dict[str, object]:
    """What a job over such a data set would be known by."""
    n = given.channels
    model = nn.Sequential(nn.Linear(4, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 3)).eval()
    question = (A.channels, B.channels) if given.pairs else A.channels
    known = json.loads(json.dumps(nrm.relmax(model, torch.rand(4, 4), question, k=K, progress=False).facts))
    known["data"]["samples"], known["shard_size"] = given.samples, given.shard
    known["per_class"], known["leading"] = [not given.pairs], [ROOM if given.pairs else 0]
    return dict(known)


def simulate(numbers: range, blocks: int, limits: Limits, known: KnownBest) -> tuple[Tally, float]:
    """The tally of one shard: heavy-tailed relevances, as those of channels are; the time that the counting took."""
    generator = torch.Generator().manual_seed(numbers.start)
    tally, spent = Tally(limits, known=known), 0.0
    for begin in range(0, len(numbers), BATCH):
        some = numbers[begin : begin + BATCH]
        shares = torch.rand(len(some), blocks, generator=generator) ** 8
        places = torch.randint(0, blocks, shares.shape, generator=generator)
        classes = torch.randint(0, CLASSES, (len(some),), generator=generator).tolist()
        pairs = limits.leading[0] > 0
        table = Table(shares, shares * 10) if pairs else Table(shares, shares * 10, places, shares * 3, places)
        samples = tuple(Sample(i, None, c) for i, c in zip(some, classes, strict=True))
        start = time.process_time()
        tally.add(Answers(samples, classes, classes, [1.0] * len(some), [1.0] * len(some), (table,), ()))
        spent += time.process_time() - start
    return tally, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--pairs", action="store_true")
    parser.add_argument("--shard", type=int, default=2048)
    given = parser.parse_args()
    torch.set_num_threads(1)
    path, known = Path(tempfile.mkdtemp()) / "store", facts(given)
    blocks = given.channels ** (2 if given.pairs else 1)
    tallying = writing = merging = 0.0
    memory, largest = [], 0
    seen: KnownBest = {}
    shards = -(-given.samples // given.shard)
    with claim(path, known, 1) as (shelf, _):
        for shard in range(shards):
            numbers = range(shard * given.shard, min((shard + 1) * given.shard, given.samples))
            tally, spent = simulate(numbers, blocks, shelf.limits, seen)
            times = [time.process_time()]
            write_part(shelf.parts, ShardSpan(shard, shard + 1), tally)
            times.append(time.process_time())
            remember(seen, tally)
            times.append(time.process_time())
            largest = sum(file.stat().st_size for file in shelf.folder(ShardSpan(shard, shard + 1)).iterdir())
            shelf.fold_groups(shards)
            tallying, writing = tallying + spent + times[2] - times[1], writing + times[1] - times[0]
            merging += time.process_time() - times[2]
            memory.append(peak_memory())
        start = time.process_time()
        close(shelf, known)
        merging += time.process_time() - start
    print(f"tally  {tallying / given.samples * 1e6:8.0f} us of CPU per sample")
    print(f"write  {writing / given.samples * 1e6:8.0f} us of CPU per sample; the last has {largest / 2**20:.1f} MiB")
    print(f"merge  {merging:8.1f} s of CPU in all, {merging / shards:.2f} s per shard of {given.shard}")
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    print(f"store  {size / 2**20:8.1f} MiB")
    print(f"peak memory after a quarter, all shards, and the merge: {memory[len(memory) // 4]:.0f}, {memory[-1]:.0f}, "
          f"{peak_memory():.0f} MiB")  # fmt: skip
    if given.pairs:
        ask_class(path)
    else:
        ask(path, given.channels)


def ask_class(path: Path) -> None:
    """The time of asking for the leading pairs of a class."""
    store = nrm.open_store(path)
    begin = time.perf_counter()
    found = store.best(A.channels, B.channels, k=3, target=store.classes()[0])
    print(f"query  {(time.perf_counter() - begin) * 1e3:8.1f} ms\n{found}")


def ask(path: Path, channels: int) -> None:
    """Times of queries, each of another channel."""
    begin = time.perf_counter()
    store = nrm.open_store(path)
    store.top(A.channel(0), k=9)
    first = time.perf_counter() - begin
    times, spent = [], time.process_time()
    for channel in range(1, 41):
        begin = time.perf_counter()
        store.top(A.channel(channel % channels), k=9)
        times.append(time.perf_counter() - begin)
    spent = (time.process_time() - spent) / len(times)
    print(f"query  {first * 1e3:8.1f} ms with opening the store, then {np.median(times) * 1e3:.1f} ms (median), "
          f"{max(times) * 1e3:.1f} ms at most; {spent * 1e3:.1f} ms of CPU; load {os.getloadavg()[0]:.1f}")  # fmt: skip


if __name__ == "__main__":
    main()

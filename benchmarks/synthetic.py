"""A store of 100,000 samples x 512 channels with simulated relevances: writing, merging, queries, memory.

python benchmarks/synthetic.py [--samples 100000] [--channels 512]
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
from nrm.jobs.parts import Span, write_part
from nrm.jobs.store import claim, close
from nrm.jobs.tally import Limits, Tally

A = nrm.layer("1")
SHARD, BATCH, K, ROWS, CLASSES = 2048, 64, 40, 200_000, 1000


def facts(samples: int, channels: int) -> dict[str, object]:
    """What a job over such a data set would be known by."""
    model = nn.Sequential(nn.Linear(4, channels), nn.ReLU(), nn.Linear(channels, 3)).eval()
    known = json.loads(json.dumps(nrm.relmax(model, torch.rand(4, 4), A.channels, k=K, progress=False).facts))
    known["data"]["samples"], known["shard_size"], known["per_class"] = samples, SHARD, [True]
    return dict(known)


def simulate(first: int, last: int, channels: int) -> Tally:
    """The tally of one shard: heavy-tailed relevances, as those of channels are."""
    generator = torch.Generator().manual_seed(first)
    tally = Tally(Limits(K, ROWS, (True,), (0,)))
    for begin in range(first, last, BATCH):
        numbers = range(begin, min(begin + BATCH, last))
        count = len(numbers)
        shares = torch.rand(count, channels, generator=generator) ** 8
        places = torch.randint(0, channels, (count, channels), generator=generator)
        classes = torch.randint(0, CLASSES, (count,), generator=generator).tolist()
        table = Table(shares, shares * 10, places, shares * 3, places)
        samples = tuple(Sample(i, None, c) for i, c in zip(numbers, classes, strict=True))
        tally.add(Answers(samples, classes, classes, [1.0] * count, [1.0] * count, (table,), ()))
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--channels", type=int, default=512)
    given = parser.parse_args()
    torch.set_num_threads(1)
    path, known = Path(tempfile.mkdtemp()) / "store", facts(given.samples, given.channels)
    tallying = writing = 0.0
    memory = []
    with claim(path, known, 1) as (shelf, _):
        for shard in range(-(-given.samples // SHARD)):
            start = time.process_time()
            tally = simulate(shard * SHARD, min((shard + 1) * SHARD, given.samples), given.channels)
            middle = time.process_time()
            write_part(shelf.parts, Span(shard, shard + 1), tally)
            tallying, writing = tallying + middle - start, writing + time.process_time() - middle
            memory.append(peak_memory())
        start = time.process_time()
        close(shelf, known)
        merging = time.process_time() - start
    print(f"tally  {tallying / given.samples * 1e6:8.0f} us of CPU per sample (with the simulation)")
    print(f"write  {writing / given.samples * 1e6:8.0f} us of CPU per sample")
    print(f"merge  {merging:8.1f} s of CPU in all")
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    print(f"store  {size / 2**20:8.1f} MiB")
    print(f"peak memory after a quarter, all shards, and the merge: {memory[len(memory) // 4]:.0f}, {memory[-1]:.0f}, "
          f"{peak_memory():.0f} MiB")  # fmt: skip
    ask(path, given.channels)


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

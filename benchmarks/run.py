"""The benchmark table: ratios within one run, against the model's own forward pass, never bare seconds.

Timings are medians of interleaved repetitions on two threads, or the least processor time on one thread (``--alone``),
for a machine that others use, too. Memory is the peak of a fresh process.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from models import resnet50, vgg16
from torch import Tensor, nn

import nrm


def ratios(base: Callable[[], object], jobs: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """The median time of every job over that of the base, all interleaved; on one thread the least processor time."""
    times: dict[str, list[float]] = {name: [] for name in ("base", *jobs)}
    for function in (base, *jobs.values()):
        function()
    alone = torch.get_num_threads() == 1
    clock, typical = (time.process_time, min) if alone else (time.perf_counter, statistics.median)
    for _ in range(repeat):
        for name, function in (("base", base), *jobs.items()):
            begin = clock()
            function()
            times[name].append(clock() - begin)
    one = typical(times["base"])
    print(f"forward pass: {one * 1e3:.0f} ms ({'least' if alone else 'median'} of {repeat})", file=sys.stderr)
    return {name: typical(times[name]) / one for name in jobs}


def image(batch: int = 1) -> Tensor:
    """Images of the usual size."""
    return torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(0))


def explain(model: nn.Module, x: Tensor, question: Callable[[nrm.Measure], object]) -> object:
    """Capture, and the answer to one question; every run begins anew."""
    return question(nrm.measure(model, x, rules="epsilon-plus-flat", progress=False))


def heat_map(R: nrm.Measure) -> Tensor:
    """The heat map of the decision."""
    return R(R.input)


def channels(R: nrm.Measure, *layers: str) -> list[nrm.Partition]:
    """The channels of some layers."""
    return [R[name].channels for name in layers]


class Line(NamedTuple):
    """One line of the table: a question, and the bound of its cost in forward passes."""

    name: str
    ask: Callable[[nrm.Measure], object]
    bound: float | None


QUICK = (
    Line("heat map", heat_map, 3.2),
    Line("all 512 x 512 channel pairs of features.26 and 28", lambda R: R(*channels(R, "features.26", "features.28")),
         3.7),
    Line("the same for the walks from an input region",
         lambda R: R(R.input[:, :64, :64], *channels(R, "features.26", "features.28")), 6.0),
    Line("the ten largest of all 512^3 flows over features.24, 26 and 28, certified",
         lambda R: certified(R.flows(*channels(R, "features.24", "features.26", "features.28"))), 20.0),
)  # fmt: skip
SLOW = (
    Line("128 x 512 channel pairs of far layers, features.5 and 28",
         lambda R: R(*channels(R, "features.5", "features.28")), 120.0),
    Line("the ten largest single walks", lambda R: R.walks(), 100.0),
)  # fmt: skip
RESNET = (
    Line("ResNet50: heat map", heat_map, 3.5),
    Line("ResNet50: the ten largest of 1024 x 2048 channel pairs of layer3 and layer4, certified",
         lambda R: certified(R.flows(*channels(R, "layer3", "layer4"))), 40.0),
    Line("ResNet50: 1024 x 2048 channel pairs of the outputs of layer3 and layer4",
         lambda R: R(*channels(R, "layer3", "layer4")), None),
)  # fmt: skip


def certified(flows: nrm.search.Flows) -> nrm.search.Flows:
    """The flows, if nothing can be missing."""
    assert all(flows.certified)
    return flows


def peak(job: str, script: str = __file__) -> float:
    """The peak memory in MiB of a fresh process that does one job."""
    result = subprocess.run([sys.executable, script, "--job", job], capture_output=True, text=True, check=True)
    return float(result.stdout.strip().splitlines()[-1])


def peak_memory() -> float:
    """The peak memory of this process in MiB."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) / 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_job(job: str) -> None:
    """One job in this process, for its peak memory."""
    model, x = vgg16(), image()
    if job == "forward":
        model(x)  # with gradients on, so that activations are kept
    elif job == "heat map":
        model.requires_grad_(False)
        explain(model, x, heat_map)
    print(peak_memory())


def table(model: nn.Module, x: Tensor, lines: Sequence[Line], repeat: int) -> dict[str, float]:
    """Prints some lines of the table."""

    def forward() -> Tensor:
        with torch.no_grad():
            return model(x)

    jobs = {line.name: lambda ask=line.ask: explain(model, x, ask) for line in lines}
    times = ratios(forward, jobs, repeat)
    for line in lines:
        print(f"| {line.name} | {times[line.name]:.2f} forward passes | {line.bound or ''} |", flush=True)
    return times


def batch_of_16(model: nn.Module, repeat: int) -> None:
    """What an image costs in a batch, over what it costs alone."""
    alone, many = image(), image(16)
    jobs = {"batch": lambda: explain(model, many, heat_map)}
    ratio = ratios(lambda: explain(model, alone, heat_map), jobs, repeat)["batch"] / 16
    print(f"| heat maps of a batch of 16, per image, over that of a single image | {ratio:.2f} | 1 |")


def memory() -> None:
    """Peak memory of fresh processes."""
    weights, kept, ours = peak("weights"), peak("forward"), peak("heat map")
    print(f"| peak memory of the process, over a forward pass that keeps its activations | {ours / kept:.2f} | 2.5 |")
    own, theirs = ours - weights, kept - weights
    print(f"| the same without weights ({weights:.0f} MiB) | {own / theirs:.2f} ({own:.0f} / {theirs:.0f} MiB) | |")


def rest(repeat: int) -> None:
    """The lines that depend most on where memory comes from: a batch, and a network of many small steps."""
    batch_of_16(vgg16(), max(1, repeat // 2))
    table(resnet50(), image(), RESNET[:1], repeat)


def keeping_memory(options: argparse.Namespace) -> None:
    """The same lines in a process whose allocator (glibc's) keeps freed memory for the next tensor."""
    print("| *the same where the allocator keeps freed memory* | | |", flush=True)
    settings = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33)}
    command = [sys.executable, __file__, "--rest", "--repeat", str(options.repeat), *["--alone"] * options.alone]
    subprocess.run(command, env={**os.environ, **settings}, check=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="only what takes seconds")
    parser.add_argument("--alone", action="store_true", help="processor time on one thread")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--rest", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1 if options.alone else 2)
    if options.job:
        run_job(options.job)
        return
    if options.rest:
        rest(options.repeat)
        return
    print("| VGG16, one image, epsilon-plus-flat, capture included | measured | bound |\n|---|---|---|")
    model = vgg16()
    table(model, image(), QUICK, options.repeat)
    if not options.quick:
        table(model, image(), SLOW, 1)
        rest(options.repeat)
        table(resnet50(), image(), RESNET[1:], 1)
    memory()
    if not options.quick:
        keeping_memory(options)


if __name__ == "__main__":
    main()

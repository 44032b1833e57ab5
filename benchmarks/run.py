"""The benchmark table: ratios within one run, against the model's own forward pass, never bare seconds.

Timings are medians of interleaved repetitions on two threads. Memory is the peak of a fresh process.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from models import vgg16

import nrm


def ratios(base: Callable[[], object], jobs: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """The median time of every job over that of the base, all interleaved in one run."""
    times: dict[str, list[float]] = {name: [] for name in ("base", *jobs)}
    for function in (base, *jobs.values()):
        function()
    for _ in range(repeat):
        for name, function in (("base", base), *jobs.items()):
            begin = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - begin)
    one = statistics.median(times["base"])
    print(f"forward pass: {one * 1e3:.0f} ms (median of {repeat})", file=sys.stderr)
    return {name: statistics.median(times[name]) / one for name in jobs}


def image() -> torch.Tensor:
    """One image of the usual size."""
    return torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))


def heat_map(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Capture and the heat map of the decision."""
    R = nrm.measure(model, x, rules="epsilon-plus-flat")
    return R(R.input)


def channel_pairs(model: torch.nn.Module, x: torch.Tensor, *, region: bool) -> torch.Tensor:
    """Capture and the table of all channel pairs of the last two convolutions, for all walks or those from a region."""
    R = nrm.measure(model, x, rules="epsilon-plus-flat")
    pairs = (R["features.26"].channels, R["features.28"].channels)
    return R(R.input[:, :64, :64], *pairs) if region else R(*pairs)


def peak(job: str) -> float:
    """The peak memory in MiB of a fresh process that does one job."""
    result = subprocess.run([sys.executable, __file__, "--job", job], capture_output=True, text=True, check=True)
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
        heat_map(model, x)
    print(peak_memory())


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(2)
    if options.job:
        run_job(options.job)
        return
    model, x = vgg16(), image()

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    jobs: dict[str, Callable[[], object]] = {
        "heat map, capture included": lambda: heat_map(model, x),
        "all 512 x 512 channel pairs of features.26 and 28": lambda: channel_pairs(model, x, region=False),
        "the same for the walks from an input region": lambda: channel_pairs(model, x, region=True),
    }
    times, bounds = ratios(forward, jobs, options.repeat), (3.2, 3.7, 6.0)
    weights, kept, ours = peak("weights"), peak("forward"), peak("heat map")
    print("| VGG16, one image, epsilon-plus-flat | measured | bound |\n|---|---|---|")
    for (name, ratio), bound in zip(times.items(), bounds, strict=True):
        print(f"| {name} | {ratio:.2f} forward passes | {bound} |")
    print(f"| peak memory of the process, over a forward pass that keeps its activations | {ours / kept:.2f} | 2.5 |")
    own, theirs = ours - weights, kept - weights
    print(f"| the same without weights ({weights:.0f} MiB) | {own / theirs:.2f} ({own:.0f} / {theirs:.0f} MiB) | |")


if __name__ == "__main__":
    main()

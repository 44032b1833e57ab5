"""How cost grows: linearly in depth, and linearly in the number of blocks that have to be carried by themselves.

Prints the two tables and draws them. Times are ratios to the smallest case of the same run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from models import chain

import nrm

DEPTHS = (4, 8, 16, 32, 64)
BLOCKS = (4, 8, 16, 32, 64)


def seconds(job: Callable[[], object], repeat: int) -> float:
    """The median time of a job."""
    job()
    taken = []
    for _ in range(repeat):
        begin = time.perf_counter()
        job()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def by_depth(repeat: int) -> list[float]:
    """A heat map, capture included, of chains of convolutions."""
    x = torch.rand(1, 3, 56, 56)

    def heat(depth: int) -> Callable[[], object]:
        model = chain(depth)

        def job() -> object:
            R = nrm.measure(model, x, rules="epsilon-plus", progress=False)
            return R(R.input)

        return job

    return [seconds(heat(depth), repeat) for depth in DEPTHS]


def by_blocks(repeat: int) -> list[float]:
    """Channel pairs of two far layers, for more and more channels of the lower one."""
    R = nrm.measure(chain(12), torch.rand(1, 3, 56, 56), rules="epsilon-plus", progress=False)
    high = R["19"].channels
    R(high)
    return [seconds(lambda n=n: R(R["3"].channels[:n], high), repeat) for n in BLOCKS]


def show(title: str, sizes: Sequence[int], times: Sequence[float]) -> None:
    """Prints one table."""
    print(f"| {title} | {' | '.join(map(str, sizes))} |\n|---{'|---' * len(sizes)}|")
    print(f"| time, over that of {sizes[0]} | {' | '.join(f'{t / times[0]:.1f}' for t in times)} |")
    print(f"| a straight line | {' | '.join(f'{n / sizes[0]:.1f}' for n in sizes)} |\n")


def draw(path: Path, curves: Sequence[tuple[str, Sequence[int], Sequence[float]]]) -> None:
    """Draws the curves beside straight lines through their first point."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(8, 3.2), layout="constrained")
    for ax, (title, sizes, times) in zip(axes, curves, strict=True):
        ax.loglog(sizes, [t / times[0] for t in times], "o-", label="measured")
        ax.loglog(sizes, [n / sizes[0] for n in sizes], "--", color="gray", label="linear")
        ax.set(xlabel=title, ylabel=f"time / time of {sizes[0]}", xticks=sizes, xticklabels=sizes)
        ax.minorticks_off()
        ax.legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    """Prints the tables and draws the curves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("out/growth.png"))
    options = parser.parse_args()
    torch.set_num_threads(2)
    curves = (
        ("convolutions", DEPTHS, by_depth(options.repeat)),
        ("channels carried", BLOCKS, by_blocks(options.repeat)),
    )
    for title, sizes, times in curves:
        show(title, sizes, times)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    draw(options.out, curves)


if __name__ == "__main__":
    main()

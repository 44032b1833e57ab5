"""An LSTM of 100 steps: capture and heat map, in milliseconds and in forward passes of the same run."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import nrm


class Reader(nn.Module):
    """One recurrent layer and a head that reads its last step."""

    def __init__(self, hidden: int, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def milliseconds(job: Callable[[], object], repeat: int) -> float:
    """The median time of a job, after one run that does not count."""
    times = []
    for _ in range(repeat + 1):
        begin = time.perf_counter()
        job()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times[1:])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    print(f"| LSTM of {options.steps} steps, lrp-0 | ms | forward passes |\n|---|---|---|")
    for hidden, batch in ((64, 1), (128, 1), (128, 32)):
        model, x = Reader(hidden).eval(), torch.randn(batch, options.steps, 16)
        R = nrm.measure(model, x)
        steps = R["lstm"]
        R(R.input)

        def heat(model: nn.Module = model, x: Tensor = x) -> Tensor:
            own = nrm.measure(model, x)
            return own(own.input)

        def forward(model: nn.Module = model, x: Tensor = x) -> Tensor:
            with torch.no_grad():
                return model(x)

        one = milliseconds(forward, options.repeat)
        high, low = steps.step(-1), steps.step(options.steps // 5)
        jobs: dict[str, Callable[[], object]] = {
            "forward pass": forward,
            "capture": lambda model=model, x=x: nrm.measure(model, x),  # type: ignore[misc]
            "capture and heat map": heat,
            "joint relevance of two steps": lambda R=R, a=high, b=low: R(a, b),  # type: ignore[misc]
            "table of all pairs of steps": lambda R=R, a=steps: R(a.steps, a.steps),  # type: ignore[misc]
        }
        for name, job in jobs.items():
            took = milliseconds(job, options.repeat)
            print(f"| {name}, hidden {hidden}, batch {batch} | {took:.0f} | {took / one:.0f} |")


if __name__ == "__main__":
    main()

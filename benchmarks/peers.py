"""Beside captum, zennit and zennit-crp, in one run: time over ours, and peak memory of fresh processes.

Runs in the environment of ``make peers``. zennit-crp explains one channel at a time; some rows of its table are
measured and the rest is extrapolated, which favours it (its own set-up is paid once).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from models import vgg16
from run import channels, explain, heat_map, image, peak, peak_memory, ratios
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import vision

vision.load()  # zennit imports torchvision
from captum.attr import LRP  # noqa: E402
from captum.attr._utils.lrp_rules import Alpha1_Beta0_Rule  # noqa: E402
from crp.attribution import CondAttribution  # noqa: E402
from zennit.attribution import Gradient  # noqa: E402
from zennit.composites import EpsilonPlusFlat  # noqa: E402

ROWS = 4
"""How many of zennit-crp's 512 rows are measured."""
LOW, HIGH = "features.26", "features.28"


def captum_heat(model: nn.Module, x: Tensor, target: int) -> Tensor:
    """Captum's LRP with its z+ rule on convolutions (its default rule elsewhere)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.rule = Alpha1_Beta0_Rule()
    return LRP(model).attribute(x.clone().requires_grad_(), target=target)


def zennit_heat(model: nn.Module, x: Tensor, target: int) -> Tensor:
    """Zennit's heat map."""
    with Gradient(model=model, composite=EpsilonPlusFlat()) as attributor:
        return attributor(x.clone(), torch.eye(1000)[[target]])[1]


def crp_rows(model: nn.Module, x: Tensor, target: int, rows: int = ROWS) -> Tensor:
    """Some rows of the pair table by zennit-crp: one condition after the other, the lower layer recorded."""
    attribution, found = CondAttribution(model), []
    for channel in range(rows):
        conditions = [{HIGH: [channel], "y": [target]}]
        result = attribution(x.clone().requires_grad_(), conditions, EpsilonPlusFlat(), record_layer=[LOW])
        found.append(result.relevances[LOW].sum((2, 3)).detach())
    return torch.cat(found)


def crp_batch(model: nn.Module, x: Tensor, target: int, rows: int = 16) -> Tensor:
    """The same for many conditions in one batch, as zennit-crp recommends: faster, and larger."""
    conditions = [{HIGH: [channel], "y": [target]} for channel in range(rows)]
    result = CondAttribution(model)(x.clone().requires_grad_(), conditions, EpsilonPlusFlat(), record_layer=[LOW])
    return result.relevances[LOW].sum((2, 3)).detach()


def run_job(job: str) -> None:
    """One job in this process, for its peak memory."""
    model, x = vgg16(), image()
    target = int(model(x).argmax())
    if job == "ours":
        explain(model, x, lambda R: R(*channels(R, LOW, HIGH)))
    elif job == "crp":
        crp_batch(model, x, target)
    print(peak_memory())


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(2)
    if options.job:
        run_job(options.job)
        return
    model, x = vgg16(), image()
    with torch.no_grad():
        target = int(model(x).argmax())
    jobs = {
        "ours": lambda: explain(model, x, heat_map),
        "captum": lambda: captum_heat(vgg16(), x, target),
        "load": vgg16,
        "zennit": lambda: zennit_heat(model, x, target),
        "our pairs": lambda: explain(model, x, lambda R: R(*channels(R, LOW, HIGH))),
        "crp rows": lambda: crp_rows(model, x, target),
        "crp batch": lambda: crp_batch(model, x, target),
    }

    def forward() -> Tensor:
        with torch.no_grad():
            return model(x)

    times = ratios(forward, jobs, options.repeat)
    captum = times["captum"] - times["load"]  # its rules are put on the modules of a fresh copy
    row, batched = times["crp rows"] / ROWS, times["crp batch"] / 16
    print("| VGG16, one image | forward passes | ours | ratio |\n|---|---|---|---|")
    print(f"| heat map, captum | {captum:.2f} | {times['ours']:.2f} | {times['ours'] / captum:.2f} |")
    print(f"| heat map, zennit | {times['zennit']:.2f} | {times['ours']:.2f} | {times['ours'] / times['zennit']:.2f} |")
    for what, cost in (("one condition at a time", row), ("16 conditions per batch", batched)):
        total = 512 * cost
        print(f"| 512 x 512 pairs, zennit-crp, {what}, extrapolated | {total:.0f} | {times['our pairs']:.2f} | "
              f"{total / times['our pairs']:.0f} times faster |")  # fmt: skip
    ours, theirs = peak("ours", __file__), peak("crp", __file__)
    print(
        f"| peak memory, pairs (zennit-crp: 16 conditions) | {theirs:.0f} MiB | {ours:.0f} MiB | {ours / theirs:.2f} |"
    )


if __name__ == "__main__":
    main()

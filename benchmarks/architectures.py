"""Heat maps of many architectures, capture included, in forward passes of the model: processor time on one thread.

torchvision's networks with random weights and one image of 224 x 224, SmolLM2 with 64 tokens where ``make smollm2`` has
fetched it. The least of interleaved repetitions: on a shared machine others only add to it.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import contrast
import torch
from models import vgg16
from torch import Tensor, nn

import nrm

BOUNDS = {
    "vgg16": 2.9, "resnet50": 3.5, "mobilenet_v2": 6.5, "efficientnet_b0": 5.5, "convnext_tiny": 3.5,
    "vit_b_16": 3.0, "swin_t": 5.0, "densenet121": 5.0, "smollm2": 4.0,
}  # fmt: skip
"""How many forward passes the heat map of every network may cost."""
POSITIVE = "vgg16", "resnet50", "densenet121"
"""Networks of ReLUs: a composite of positive parts explains them, too, and divides by column sums."""
RULES = "epsilon-plus-flat", "lrp-0"


def made(name: str) -> nn.Module:
    """A network in eval mode whose batch norms have seen a few images, so that its activations stay alive."""
    if name == "vgg16":
        return vgg16()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    import vision

    torch.manual_seed(0)
    model: nn.Module = vision.load().models.get_model(name)
    for weight in model.parameters():
        if weight.ndim > 1 and not bool(weight.any()):  # a head of zeros, whose output nothing can be a share of
            nn.init.normal_(weight, std=0.02)
    if any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        model.train()
        with torch.no_grad():
            for _ in range(10):
                model(torch.randn(4, 3, 96, 96))
    return model.eval()


def line(name: str, model: nn.Module, x: Tensor, bound: float, repeat: int, options: Mapping[str, Any]) -> None:
    """Prints what heat maps of one network cost under both composites."""

    def forward() -> object:
        with torch.no_grad():
            return model(x)

    def heat_map(rules: str) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # relevance of random weights may cancel; what it costs does not depend on it
            R = nrm.measure(model, x, rules=rules, progress=False, **options)
            return R(R.input)

    asked = RULES if name in POSITIVE else RULES[1:]
    jobs: dict[str, Callable[[], object]] = {rules: lambda rules=rules: heat_map(rules) for rules in asked}
    found = contrast.times({"forward": forward, **jobs}, repeat, min)
    cells = " | ".join(f"{found[rules] / found['forward']:.2f}" if rules in found else "" for rules in RULES)
    print(f"| {name} | {found['forward'] * 1e3:.0f} ms | {cells} | {bound} |", flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[*BOUNDS], choices=[*BOUNDS])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| heat map, capture included | forward pass | {' | '.join(RULES)} | bound |\n|---|---|---|---|---|")
    image = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    for name in options.only:
        if name != "smollm2":
            line(name, made(name), image, BOUNDS[name], options.repeat, {})
            continue
        model = contrast.load()
        if model is not None:
            ids, _ = contrast.pair_of(64, model.config.vocab_size)
            line(
                f"{name}, 64 tokens",
                model,
                ids,
                BOUNDS[name],
                options.repeat,
                {"output": contrast.difference_of_logits},
            )


if __name__ == "__main__":
    main()

"""What a heat map costs, network by network, in forward passes of the model: processor time on one thread.

Capture alone, capture and heat map, both also on inputs of known structure (``like=``), and for comparison a forward
and backward pass to the input. torchvision's networks with random weights and one image of 224 x 224; SmolLM2 where
``make smollm2`` has fetched it. The least of interleaved repetitions: on a shared machine others only add to it.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import contrast
import torch
from models import vgg16
from torch import Tensor, nn

import nrm
from nrm.capture import capture_batch, script_of


class Goal(NamedTuple):
    """What a heat map under LRP-0 may cost, in forward passes, and what capture alone may, where that is said."""

    heat_map: float
    capture: float | None = None


GOALS = {
    "vgg16": Goal(2.7), "resnet50": Goal(2.9), "mobilenet_v2": Goal(4.0, 1.5), "efficientnet_b0": Goal(3.5),
    "convnext_tiny": Goal(3.0), "vit_b_16": Goal(2.5), "swin_t": Goal(3.0), "densenet121": Goal(3.5),
    "smollm2-64": Goal(3.0, 1.5), "smollm2-256": Goal(2.5),
}  # fmt: skip
"""By network; behind SmolLM2 stands the number of tokens."""
POSITIVE = "vgg16", "resnet50", "densenet121"
"""Networks of ReLUs: a composite of positive parts explains them, too, and divides by column sums."""
RULES = "lrp-0", "epsilon-plus-flat"
COLUMNS = "backward", "capture", "followed", "again", *RULES
FOLLOWED = 1.15
"""What capture on inputs of known structure may cost."""
Output = Callable[[Any], Tensor] | None


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


def backward(model: nn.Module, x: Tensor, output: Output) -> None:
    """A forward and a backward pass to the input; of tokens, to their embeddings."""
    if x.is_floating_point():
        model(x.clone().requires_grad_()).amax().backward()
    else:
        embedded = model.get_input_embeddings()(x).detach().requires_grad_()
        output(model(inputs_embeds=embedded)).sum().backward()


def line(name: str, model: nn.Module, x: Tensor, goal: Goal, repeat: int, output: Output = None) -> None:
    """Prints what one network costs."""
    model.requires_grad_(False)

    def forward() -> object:
        with torch.no_grad():
            return model(x)

    def heat_map(rules: str, like: Any = None) -> Tensor:
        with warnings.catch_warnings():  # relevance of random weights may cancel; time does not depend on it
            warnings.simplefilter("ignore")
            R = nrm.measure(model, x, output=output, rules=rules, progress=False, like=like)
            return R(R.input)

    script = script_of(capture_batch(model, x, output=output))
    jobs: dict[str, Callable[[], object]] = {
        "forward": forward, "backward": lambda: backward(model, x, output),
        "capture": lambda: capture_batch(model, x, output=output),
        "followed": lambda: capture_batch(model, x, output=output, like=script),
        "again": lambda: heat_map(RULES[0], script),
        **{rules: lambda rules=rules: heat_map(rules) for rules in (RULES if name in POSITIVE else RULES[:1])},
    }  # fmt: skip
    found = contrast.times(jobs, repeat, min)
    cells = [f"{found[job] / found['forward']:.2f}" if job in found else "" for job in COLUMNS]
    cells[1] += f" (goal {goal.capture})" if goal.capture else ""
    cells[2] += f" (goal {FOLLOWED})"
    cells[4] += f" (goal {goal.heat_map})"
    print(f"| {name} | {found['forward'] * 1e3:.0f} ms | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[*GOALS], choices=[*GOALS])
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| in forward passes | forward pass | forward + backward | capture | followed | heat map, followed | LRP-0 |"
          " epsilon-plus-flat |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    image = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    for name in options.only:
        kind, _, tokens = name.partition("-")
        if kind != "smollm2":
            line(name, made(name), image, GOALS[name], options.repeat)
        elif (model := contrast.load()) is not None:
            ids, _ = contrast.pair_of(int(tokens), model.config.vocab_size)
            line(name, model, ids, GOALS[name], options.repeat, contrast.difference_of_logits)


if __name__ == "__main__":
    main()

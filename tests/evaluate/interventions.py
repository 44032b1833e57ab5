"""The slow truth: one forward pass of the user's own model for every removal, by hooks on its modules."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Change = Callable[[Tensor], Tensor]


@contextlib.contextmanager
def changed(model: nn.Module, changes: Mapping[str, Change]) -> Iterator[None]:
    """Modules whose outputs are changed; ``name#k`` is the k-th call."""
    with contextlib.ExitStack() as stack:
        for path, module in model.named_modules():
            mine = {key.partition("#")[2]: change for key, change in changes.items() if key.partition("#")[0] == path}
            if mine and path:
                calls = itertools.count()

                def hook(_: nn.Module, __: Any, output: Any, mine: Any = mine, calls: Any = calls) -> Any:
                    change = mine.get(str(next(calls)), mine.get(""))
                    return None if change is None else change(output)

                stack.callback(module.register_forward_hook(hook).remove)
        yield


def outputs(model: nn.Module, inputs: Sequence[Tensor], changes: Mapping[str, Change]) -> Tensor:
    """The model's outputs with changed tensors; ``input``, or ``input[i]``, is what the model is given."""
    given = [x.clone() for x in inputs]
    for i, x in enumerate(given):
        for name in ("input",) if len(given) == 1 else (f"input[{i}]",):
            given[i] = changes[name](x) if name in changes else x
    with torch.no_grad(), changed(model, changes):
        return model(*given)


def without(mask: Tensor, value: Tensor | float = 0.0) -> Change:
    """The change that puts a value at the entries of a mask, which has all axes."""
    return lambda tensor: torch.where(mask, value, tensor)


def joint_contribution(
    model: nn.Module, inputs: Sequence[Tensor], read: Callable[[Tensor], Tensor], removals: Mapping[str, Change]
) -> Tensor:
    """The alternating sum over all subsets of removals, each a forward pass."""
    total: Any = 0.0
    for size in range(len(removals) + 1):
        for subset in itertools.combinations(removals.items(), size):
            total = total + (-1) ** size * read(outputs(model, inputs, dict(subset)))
    return total

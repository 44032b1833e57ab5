"""How many products of weights a computation takes."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Counting(TorchDispatchMode):
    """Counts convolutions and products of matrices."""

    count = 0

    def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:  # type: ignore[type-arg]
        self.count += str(func).startswith(("aten.convolution", "aten.bmm", "aten.mm", "aten.addmm", "mkldnn._linear"))
        return func(*args, **(kwargs or {}))  # type: ignore[operator]

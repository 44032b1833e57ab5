"""What a model is made of, listed once for a capture: walking through a deep model takes its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from nrm.capture.arguments import PLAIN, tensors_in


class Anatomy:
    """A model's modules by path, and its parameters and buffers by name; what is shared counts once."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules: list[tuple[str, nn.Module]] = list(model.named_modules())
        self.parameters = self._named(lambda module: module._parameters)
        self.buffers = self._named(lambda module: module._buffers)

    def _named(self, own: Callable[[nn.Module], Mapping[str, Tensor | None]]) -> list[tuple[str, Tensor]]:
        found: dict[int, tuple[str, Tensor]] = {}
        for path, module in self.modules:
            for name, tensor in own(module).items():
                if tensor is not None:
                    found.setdefault(id(tensor), (f"{path}.{name}" if path else name, tensor))
        return list(found.values())

    @property
    def tensors(self) -> list[tuple[str, Tensor]]:
        """Parameters and buffers."""
        return self.parameters + self.buffers

    @property
    def attributes(self) -> list[Tensor]:
        """Tensors that are plain attributes of modules, also in lists and dictionaries of theirs."""
        return [t for _, module in self.modules for t in tensors_in(list(_plain(module)))]

    @property
    def precisions(self) -> set[torch.dtype]:
        """The float types among the tensors."""
        return {tensor.dtype for _, tensor in self.tensors if tensor.is_floating_point()}


def _plain(module: nn.Module) -> Iterator[object]:
    """The attributes of a module that may hold tensors, besides its parameters and buffers."""
    own = module.__dict__
    for name in own.keys() - _COMMON:
        value = own[name]
        if type(value) not in PLAIN and name[:1] != "_" and isinstance(value, Tensor | list | tuple | dict):
            yield value


_COMMON = frozenset(nn.Module().__dict__)
"""Attributes that every module has."""

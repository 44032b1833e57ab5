"""Where a measure came from: its model, as long as it still is the one that was measured."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from nrm.capture import Linear, Tape, own_output, standing_in, tensors_in, unwrap
from nrm.errors import NrmError
from nrm.operators import loaded

Versions = list[tuple[str, Tensor, int]]


class Origin:
    """The model of a measure. The inputs are kept only if the model's own precision is another than the measure's.

    ``every`` says that every parameter is read by later questions, not only the weights of linear steps.
    """

    def __init__(self, model: nn.Module, inputs: Any, output: Any, tape: Tape, *, every: bool = False) -> None:
        self.model = unwrap(model)
        self._used = _used_weights(tape) + (_versions(list(self.model.named_parameters())) if every else [])
        self._call: tuple[Any, Any] | None = None
        if any(p.dtype != tape.dtype for p in self.model.parameters()):  # packed ones are of whole numbers
            self._call = (inputs, output)
            self._all = _versions([*self.model.named_parameters(), *self.model.named_buffers(),
                                   *(("input", t) for t in tensors_in(inputs))])  # fmt: skip

    def check_fresh(self) -> None:
        """Refuses to go on with weights that were changed in place; the measure reads the model's own."""
        changed = _changed(self._used)
        if changed is not None:
            raise NrmError(
                "the model's weights have changed since this measure was made", where=f"layer {changed!r}",
                got="weights that were written to, as by a training step", expected="the weights that were measured",
                hint="make the measure again: nrm.measure(model, inputs)",
            )  # fmt: skip

    def own_output(self) -> Tensor | None:
        """The output in the model's own precision; None if it is the measure's, or if model or inputs have changed."""
        if self._call is None or _changed(self._all) is not None:
            return None
        inputs, output = self._call
        return own_output(self.model, inputs, output)

    def digest(self) -> str:
        """A fingerprint of the model's class, parameters and buffers: equal on every machine."""
        return model_digest(self.model)


def model_digest(model: nn.Module) -> str:
    """A fingerprint of a model's class, parameters and buffers."""
    digest = hashlib.blake2b(type(model).__qualname__.encode(), digest_size=16)
    with standing_in(model):
        for name, tensor in sorted(model.state_dict().items()):
            if isinstance(tensor, Tensor):
                digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
                data = loaded(tensor.detach()).cpu().contiguous().view(-1)
                digest.update(data.view(torch.uint8).numpy().tobytes() if data.numel() else b"")
    return digest.hexdigest()


def _used_weights(tape: Tape) -> Versions:
    """The weights and biases of the linear steps, under the names of their layers."""
    found: list[tuple[str, Any]] = []
    for node in tape.nodes:
        if isinstance(node.op, Linear):
            found += [(node.name, getattr(node.op.map, "weight", None)), (node.name, node.op.bias)]
    return _versions(found)


def _versions(named: list[tuple[str, Any]]) -> Versions:
    return [(name, t, t._version) for name, t in named if isinstance(t, Tensor) and not t.is_inference()]


def _changed(versions: Versions) -> str | None:
    return next((name for name, tensor, version in versions if tensor._version != version), None)

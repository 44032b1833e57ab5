"""A tape has to explain its own values: every node is computed again from its op and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nrm.capture import Combine, Node, Pointwise, Source, Tape, capture, find_deviation, reads, replay


class Wrapped(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random numbers of both signs."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def needed_nodes(tape: Tape) -> list[Node]:
    """The nodes from which the output is computed."""
    needed = {tape.output}
    for node in reversed(tape.nodes):
        needed.update(reads(node) if node.index in needed else ())
    return [node for node in tape.nodes if node.index in needed]


def check_tape(tape: Tape, tolerance: float = 1e-12) -> None:
    """Every node has the value that its op gives it, and the maps of data movement are adjoint."""
    for node in tape.nodes:
        stack = node.op.compute([tape.nodes[i].value[None] for i in node.inputs])
        if stack is not None and not isinstance(node.op, Pointwise):
            assert stack[0].shape == node.shape, node.name
            assert torch.allclose(stack[0], node.value, rtol=tolerance, atol=tolerance), node.name
        if isinstance(node.op, Combine):
            for term in node.op.terms:
                if term.move is not None:
                    x, y = numbers(2, *term.move.inside).to(node.value), numbers(2, *term.move.outside).to(node.value)
                    up, down = (term.move.apply(x) * y).sum(), (term.move.transpose(y) * x).sum()
                    assert torch.allclose(up, down, rtol=1e-9, atol=1e-9), node.name
    assert find_deviation(tape) is None
    for node in needed_nodes(tape):
        if not isinstance(node.op, Source):
            again = replay(node, {i: tape.nodes[i].value[None] for i in reads(node)})[0]
            assert again.shape == node.shape, node.name
            assert torch.allclose(again, node.value, rtol=tolerance, atol=tolerance, equal_nan=True), node.name


def check_capture(model: nn.Module | Callable[..., Any], *inputs: Any, **options: Any) -> Tape:
    """Captures a model (or function) and compares with its plain forward pass; the tape explains itself."""
    model = model if isinstance(model, nn.Module) else Wrapped(model)
    tolerance = options.pop("tolerance", 1e-12)
    with torch.no_grad():
        expected = model(*(x.clone() if isinstance(x, Tensor) else x for x in inputs))
    tape = capture(model, inputs, **options)
    got = tape.nodes[tape.output].value
    if isinstance(expected, Tensor):
        assert got.shape == expected.shape
        assert torch.allclose(got, expected.to(got.dtype), rtol=tolerance, atol=tolerance)
    check_tape(tape, tolerance)
    if isinstance(expected, Tensor) and options.keys() <= {"batch_dim"} and not tape.notes:
        check_other_inputs(model, inputs, tape, tolerance)
    return tape


def check_other_inputs(model: nn.Module, inputs: tuple[Any, ...], tape: Tape, tolerance: float) -> None:
    """A tape computes what the model computes for other inputs as well: nothing that depends on them is constant."""
    floats = [x for x in inputs if isinstance(x, Tensor) and x.is_floating_point()]
    if len(floats) < len(tape.inputs):
        return
    other = [(x * (0.9 + 0.2 * numbers(*x.shape, seed=3).sigmoid()).to(x)) for x in floats]
    values = {i: x.detach().to(tape.dtype)[None] for i, x in zip(tape.inputs, other, strict=True)}
    for node in needed_nodes(tape):
        if any(i in values for i in reads(node)):
            below = {i: values.get(i, tape.nodes[i].value[None]) for i in reads(node)}
            values[node.index] = replay(node, below)
    given = iter(other)
    with torch.no_grad():
        expected = model(*(next(given) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs))
    got = values.get(tape.output, tape.nodes[tape.output].value[None])[0]
    assert torch.allclose(got, expected.to(got.dtype), rtol=tolerance, atol=tolerance)

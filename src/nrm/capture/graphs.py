"""Graphs among the inputs: which tensor lists the edges, and which graph of a batch every node belongs to.

They are known by the names that graph libraries have for them: ``edge_index`` of shape (2, edges) and ``batch`` of
shape (nodes,), as arguments of the model's ``forward`` or as entries of an object that is handed over whole. The graphs
of a batch are its samples; without a ``batch`` vector the call is one graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nrm.capture.samples import Whose
from nrm.errors import CaptureError


@dataclass(frozen=True, eq=False)
class Graphs:
    """The graphs of one call: their edges, ``(2, edges)``, and the graph of every node (None: there is one graph)."""

    edges: Tensor
    batch: Tensor | None

    @property
    def count(self) -> int:
        """The number of graphs."""
        return 1 if self.batch is None else int(self.batch.max()) + 1

    def whose(self, tensor: Tensor) -> Whose:
        """Where the graphs lie in a tensor of nodes, edges or graphs."""
        if tensor.ndim == 0:
            return Whose()
        if self.batch is None:
            return Whose(owner=torch.zeros(tensor.shape, dtype=torch.long, device=tensor.device))
        per_edge = self.batch[self.edges[0]] if self.edges.numel() else self.batch[:0]
        for rows in (self.batch, per_edge):
            if len(rows) == tensor.shape[0]:
                return Whose(owner=rows.view(-1, *(1,) * (tensor.ndim - 1)).expand(tensor.shape).contiguous())
        return Whose(0 if tensor.shape[0] == self.count else None)

    def is_weight(self, tensor: Tensor) -> bool:
        """Whether a tensor has one number per edge: it scales messages and carries none itself."""
        return tensor.ndim == 1 and len(tensor) == self.edges.shape[1] and not self._of_nodes(tensor)

    def _of_nodes(self, tensor: Tensor) -> bool:
        return self.batch is not None and len(tensor) == len(self.batch)


def find_graphs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graphs | None:
    """The graphs among the arguments of a call; None if it has no ``edge_index``."""
    named = dict(_named(model, args, kwargs))
    edges, batch, x = (named.get(name) for name in ("edge_index", "batch", "x"))
    if not isinstance(edges, Tensor) or edges.ndim != 2:
        return None
    batch = batch if isinstance(batch, Tensor) else None
    nodes = len(x) if isinstance(x, Tensor) and x.ndim > 0 else None
    if batch is not None:
        _check_batch(batch, nodes)
        nodes = len(batch)
    _check_edges(edges, nodes)
    if batch is not None and bool((batch[edges[0]] != batch[edges[1]]).any()):
        raise CaptureError(
            "an edge joins nodes of two graphs of the batch", expected="graphs that do not depend on each other",
            hint="batch_dim=None explains the whole call as one sample",
        )  # fmt: skip
    return Graphs(edges, batch)


def _check_batch(batch: Tensor, nodes: int | None) -> None:
    fits = batch.ndim == 1 and len(batch) > 0 and nodes in (None, len(batch))
    if not _holds_indices(batch) or not fits or int(batch.min()) < 0:
        raise CaptureError(
            "the batch vector does not tell graphs apart", got=f"{batch.dtype} of shape {tuple(batch.shape)}",
            expected=f"for every node{'' if nodes is None else f' of {nodes}'}, the number of its graph, from 0",
        )  # fmt: skip
    alone = (torch.bincount(batch) == 0).nonzero()[:, 0].tolist()
    if alone:
        raise CaptureError(
            "a graph of the batch has no nodes", got=f"no node of graph {alone[0]} in the batch vector",
            expected="nodes of every graph from 0 to the last", hint="leave empty graphs out",
        )  # fmt: skip


def _check_edges(edges: Tensor, nodes: int | None) -> None:
    if not _holds_indices(edges) or edges.shape[0] != 2:
        raise CaptureError(
            "edge_index does not list edges", got=f"{edges.dtype} of shape {tuple(edges.shape)}",
            expected="integers of shape (2, edges): from which node, to which node", hint="edge_index.T.contiguous()",
        )  # fmt: skip
    if edges.numel() and (int(edges.min()) < 0 or (nodes is not None and int(edges.max()) >= nodes)):
        raise CaptureError(
            "edge_index names a node that does not exist", got=f"{int(edges.min())} to {int(edges.max())}",
            expected="numbers of nodes, from 0" if nodes is None else f"0 to {nodes - 1}: there are {nodes} nodes",
        )  # fmt: skip


def is_record(value: Any) -> bool:
    """Whether a value is an object with entries by name that is no dictionary, such as the ``Data`` of a graph."""
    return not isinstance(value, dict) and all(hasattr(value, n) for n in ("keys", "__getitem__", "__setitem__"))


def _holds_indices(t: Tensor) -> bool:
    return not t.is_floating_point() and not t.is_complex() and t.dtype != torch.bool


def _named(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    try:
        names = list(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        names = []
    for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
        if is_record(value):
            yield from ((key, value[key]) for key in value.keys())  # noqa: SIM118
        else:
            yield name, value

"""Graphs among the inputs: which tensors list the edges, and which graph of a batch every node belongs to.

They are known by the names that graph libraries have for them: ``edge_index`` of shape (2, edges) and ``batch`` of
shape (nodes,), as arguments of the model's ``forward`` or as entries of an object that is handed over whole. Where
nodes are of several kinds, both are dictionaries (``edge_index_dict``, ``batch_dict``): by kind of edge, which is from
one kind of nodes to another, and by kind of node. The graphs of a batch are its samples; without ``batch`` the call is
one graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nrm.capture.arguments import stores_of
from nrm.capture.samples import Whose
from nrm.errors import CaptureError

EdgeKind = tuple[str, str, str]
"""From which kind of nodes, the name of the relation, to which kind of nodes."""
PLAIN: EdgeKind = ("", "", "")
"""The kind of all edges of a graph whose nodes are of one kind, which is called ``""``."""


@dataclass(frozen=True, eq=False)
class Graphs:
    """The graphs of one call: edges ``(2, edges)`` by kind, and for every kind of nodes how many there are, if known.

    ``batch`` has the graph of every node by kind (empty: there is one graph). ``kinds`` says what each of the given
    tensors, known by its identity, is about, where nodes are of several kinds.
    """

    edges: Mapping[EdgeKind, Tensor]
    nodes: Mapping[str, int | None]
    batch: Mapping[str, Tensor]
    kinds: Mapping[int, str | EdgeKind]

    @property
    def plain(self) -> Tensor | None:
        """The edges of a graph whose nodes are of one kind; None if there are several."""
        return self.edges.get(PLAIN)

    @property
    def count(self) -> int:
        """The number of graphs."""
        return max((int(batch.max()) + 1 for batch in self.batch.values() if len(batch)), default=1)

    def whose(self, tensor: Tensor, given: Tensor | None = None) -> Whose:
        """Where the graphs lie in a tensor of nodes, edges or graphs; ``given`` is that tensor as the user has it."""
        if tensor.ndim == 0:
            return Whose()
        if not self.batch:
            return Whose(owner=torch.zeros(tensor.shape, dtype=torch.long, device=tensor.device))
        kind = self.kinds.get(id(given))
        found = [rows for rows in ([self._rows(kind)] if kind is not None else self._all_rows()) if rows is not None]
        fitting = [rows for rows in found if len(rows) == tensor.shape[0]]
        if any(not torch.equal(rows, fitting[0]) for rows in fitting[1:]) and PLAIN not in self.edges:
            raise CaptureError(
                "which kind of nodes or edges is this tensor about?", got=f"shape {tuple(tensor.shape)}",
                expected="a number of rows that one kind has, or a place in a dictionary by kind",
            )  # fmt: skip
        if fitting:
            owner = fitting[0].view(-1, *(1,) * (tensor.ndim - 1))
            return Whose(owner=owner.expand(tensor.shape).contiguous())
        return Whose(0 if tensor.shape[0] == self.count else None)

    def _rows(self, kind: str | EdgeKind) -> Tensor | None:
        """The graph of every node or edge of a kind."""
        if isinstance(kind, str):
            return self.batch.get(kind)
        batch, edges = self.batch.get(kind[0]), self.edges[kind]
        return None if batch is None else batch[edges[0]] if edges.numel() else batch[:0]

    def _all_rows(self) -> list[Tensor | None]:
        kinds: list[str | EdgeKind] = [*self.batch, *self.edges]
        return [self._rows(kind) for kind in kinds]

    def is_weight(self, tensor: Tensor) -> bool:
        """Whether a tensor has one number per edge: it scales messages and carries none itself."""
        counts = {edges.shape[1] for edges in self.edges.values()}
        return tensor.ndim == 1 and len(tensor) in counts and not self._of_nodes(tensor)

    def _of_nodes(self, tensor: Tensor) -> bool:
        if PLAIN in self.edges:
            return bool(self.batch) and len(tensor) == len(self.batch[""])
        return len(tensor) in self.nodes.values()


def find_graphs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graphs | None:
    """The graphs among the arguments of a call; None if it has no ``edge_index``."""
    named: dict[str, Any] = {}
    for name, value in _named(model, args, kwargs):
        named.setdefault(name, value)
    edges = _by_kind(named, "edge_index", PLAIN)
    if not edges or not all(_is_edge_kind(kind) and isinstance(e, Tensor) and e.ndim == 2 for kind, e in edges.items()):
        return None
    batch = {kind: b for kind, b in _by_kind(named, "batch", "").items() if isinstance(b, Tensor)}
    features = _by_kind(named, "x", "")
    nodes = {kind: len(x) for kind, x in features.items() if isinstance(x, Tensor) and x.ndim > 0}
    for kind, rows in batch.items():
        _check_batch(rows, nodes.get(kind), kind)
    nodes |= {kind: len(rows) for kind, rows in batch.items()}
    found = Graphs(
        edges, {kind: nodes.get(kind) for kind in _node_kinds(edges, nodes)}, batch,
        {} if PLAIN in edges else _kinds(named),
    )  # fmt: skip
    _check_graphs(found)
    return found


def _by_kind(named: Mapping[str, Any], name: str, plain: Any) -> dict[Any, Any]:
    """The entries of a name by their kind; of graphs with one kind of nodes there is a single one."""
    value = named.get(name, named.get(f"{name}_dict"))
    return dict(value) if isinstance(value, Mapping) else {} if value is None else {plain: value}


def _is_edge_kind(kind: Any) -> bool:
    return isinstance(kind, tuple) and len(kind) == 3 and all(isinstance(part, str) for part in kind)


def _node_kinds(edges: Mapping[EdgeKind, Tensor], nodes: Mapping[str, int]) -> list[str]:
    return list(dict.fromkeys([*nodes, *(end for kind in edges for end in (kind[0], kind[2]))]))


def _kinds(named: Mapping[str, Any]) -> dict[int, str | EdgeKind]:
    """What every tensor in a dictionary by kind is about."""
    tables = [value for value in named.values() if isinstance(value, Mapping)]
    rows = [(kind, t) for table in tables for kind, t in table.items() if isinstance(t, Tensor)]
    return {id(t): kind for kind, t in rows if isinstance(kind, str) or _is_edge_kind(kind)}


def _check_graphs(graphs: Graphs) -> None:
    """Refuses edges between nodes that do not exist, or that are of different graphs."""
    for (one, name, other), edges in graphs.edges.items():
        _check_edges(edges, graphs.nodes[one], graphs.nodes[other], f" {(one, name, other)}" if name else "")
        first, second = graphs.batch.get(one), graphs.batch.get(other)
        if first is None or second is None:
            continue
        if bool((first[edges[0]] != second[edges[1]]).any()):
            raise CaptureError(
                "an edge joins nodes of two graphs of the batch", expected="graphs that do not depend on each other",
                hint="batch_dim=None explains the whole call as one sample",
            )  # fmt: skip
    without = [kind for kind in graphs.nodes if kind not in graphs.batch] if graphs.batch else []
    if without:
        raise CaptureError(
            "the graphs of some kinds of nodes are not known", got=f"batch vectors of {sorted(graphs.batch)}",
            expected=f"of {without[0]!r} as well",
        )  # fmt: skip


def _check_batch(batch: Tensor, nodes: int | None, kind: str) -> None:
    fits = batch.ndim == 1 and (len(batch) > 0 or kind != "") and nodes in (None, len(batch))
    if not _holds_indices(batch) or not fits or (len(batch) > 0 and int(batch.min()) < 0):
        raise CaptureError(
            "the batch vector does not tell graphs apart", got=f"{batch.dtype} of shape {tuple(batch.shape)}",
            expected=f"for every node{'' if nodes is None else f' of {nodes}'}, the number of its graph, from 0",
        )  # fmt: skip
    alone = (torch.bincount(batch) == 0).nonzero()[:, 0].tolist()
    if alone and not kind:
        raise CaptureError(
            "a graph of the batch has no nodes", got=f"no node of graph {alone[0]} in the batch vector",
            expected="nodes of every graph from 0 to the last", hint="leave empty graphs out",
        )  # fmt: skip


def _check_edges(edges: Tensor, sources: int | None, targets: int | None, kind: str) -> None:
    if not _holds_indices(edges) or edges.shape[0] != 2:
        raise CaptureError(
            f"edge_index{kind} does not list edges", got=f"{edges.dtype} of shape {tuple(edges.shape)}",
            expected="integers of shape (2, edges): from which node, to which node", hint="edge_index.T.contiguous()",
        )  # fmt: skip
    for end, nodes in zip(edges, (sources, targets), strict=True):
        if end.numel() and (int(end.min()) < 0 or (nodes is not None and int(end.max()) >= nodes)):
            raise CaptureError(
                f"edge_index{kind} names a node that does not exist", got=f"{int(end.min())} to {int(end.max())}",
                expected="numbers of nodes, from 0" if nodes is None else f"0 to {nodes - 1}: there are {nodes} nodes",
            )  # fmt: skip


def is_record(value: Any) -> bool:
    """Whether a value is an object with entries by name that is no dictionary, such as the ``Data`` of a graph."""
    return not isinstance(value, dict) and all(hasattr(value, n) for n in ("keys", "__getitem__", "__setitem__"))


def _holds_indices(t: Tensor) -> bool:
    return not t.is_floating_point() and not t.is_complex() and t.dtype != torch.bool


def _named(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in [*zip(parameters_of(model), args, strict=False), *kwargs.items()]:
        if is_record(value):
            yield from _entries(value)
        else:
            yield name, value


def parameters_of(model: nn.Module) -> list[str]:
    """The names of what a model is called with."""
    try:
        return list(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return []


def _entries(record: Any) -> Iterator[tuple[str, Any]]:
    """What an object has by name; of one with several kinds of nodes dictionaries by kind."""
    kinds: dict[str, dict[Any, Any]] = {}
    for kind, store in stores_of(record):
        for name in store.keys():  # noqa: SIM118
            if kind is None:
                yield name, store[name]
            else:
                kinds.setdefault(name, {})[kind] = store[name]
    yield from kinds.items()

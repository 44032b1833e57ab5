"""Graphs for the experiments: molecules of MUTAG or planted motifs, and networks in plain torch that learn them."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nrm.reproduce.data import folder_of

ATOMS = ("Br", "Cl", "C", "F", "I", "N", "O")  # of MUTAG, by number
CLASSES = {0: 0, 2: 1}  # as MUTAG.txt has them: 2 is mutagenic


@dataclass(frozen=True, eq=False)
class LabelledGraph:
    """Nodes of a kind each (one-hot), edges in both directions, a class, and the nodes known to be its cause.

    ``marked`` are the edges known to be its cause, where these are not all edges between such nodes.
    """

    x: Tensor
    edge_index: Tensor
    label: int
    known: Tensor
    marked: Tensor | None = None

    @property
    def bonds(self) -> Tensor:
        """The edges known to be the cause of its class."""
        if self.marked is not None:
            return self.marked
        return self.known[self.edge_index[0]] & self.known[self.edge_index[1]]


def read_mutag(home: Path) -> list[LabelledGraph]:
    """The molecules in the order of the ground truth: an atom and its neighbours per line."""
    lines = (home / "MUTAG.txt").read_text().splitlines()
    truth = [[int(i) for i in line.split()] for line in (home / "MUTAG_ground_truth.txt").read_text().splitlines()]
    graphs, at = [], 1
    for named in truth:
        size, label = map(int, lines[at].split())
        rows = [[int(i) for i in line.split()] for line in lines[at + 1 : at + 1 + size]]
        at += 1 + size
        edges = torch.tensor([(i, j) for i, row in enumerate(rows) for j in row[2:]]).T
        known = torch.zeros(size, dtype=torch.bool)
        known[named] = True
        graphs.append(
            LabelledGraph(F.one_hot(torch.tensor([row[0] for row in rows]), 7).float(), edges, CLASSES[label], known)
        )
    return graphs


def mutag(data: Path | None) -> list[LabelledGraph]:
    """The molecules in the user's data folder."""
    return read_mutag(folder_of(data, "graphs/MUTAG", "molecules of MUTAG"))


def read_mutagenicity(home: Path) -> list[LabelledGraph]:
    """The molecules of a TUDataset, with a mark on every edge of a known group."""

    def numbers(name: str) -> Tensor:
        with gzip.open(home / f"Mutagenicity_{name}.txt.gz", "rt") as file:
            return torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.int64))

    edges, graph, atoms = numbers("A").T - 1, numbers("graph_indicator") - 1, numbers("node_labels")
    labels, marked = numbers("graph_labels"), numbers("edge_gt").bool()
    first = torch.searchsorted(graph, torch.arange(len(labels)))
    home_of, x = graph[edges[0]], F.one_hot(atoms).float()
    found = []
    for g, label in enumerate(labels.tolist()):
        own, bonds = marked[home_of == g], edges[:, home_of == g] - first[g]
        known = torch.zeros(int((graph == g).sum()), dtype=torch.bool)
        known[bonds[:, own].flatten()] = True
        found.append(LabelledGraph(x[graph == g], bonds, label, known, own))
    return found


def mutagenicity(data: Path | None) -> list[LabelledGraph]:
    """The molecules in the user's data folder."""
    return read_mutagenicity(folder_of(data, "graphs/Mutagenicity", "molecules of Mutagenicity"))


def motifs(count: int, seed: int = 0) -> list[LabelledGraph]:
    """Random trees of three kinds of nodes; those of class 1 have a node of kind 2 between two of kind 1."""
    return [_tree(i % 2, torch.Generator().manual_seed(1000 * seed + i)) for i in range(count)]


def _tree(label: int, random: torch.Generator) -> LabelledGraph:
    size = int(torch.randint(9, 13, (), generator=random))
    pairs = [(int(torch.randint(i, (), generator=random)), i) for i in range(1, size)]
    far = [int(i) for i in torch.randperm(size, generator=random)[:3]]
    if label:
        pairs += [(far[0], size), (size, size + 1), (size, size + 2)]
        group = [size, size + 1, size + 2]
    else:
        pairs += [(at, size + k) for k, at in enumerate(far)]
        group = []
    kinds = torch.tensor([0] * size + [2, 1, 1])
    known = torch.zeros(size + 3, dtype=torch.bool)
    known[group] = True
    edges = torch.tensor(pairs + [(b, a) for a, b in pairs]).T
    return LabelledGraph(F.one_hot(kinds, 3).float(), edges, label, known)


def deal(labels: Sequence[int], parts: int = 10, seed: int = 0) -> Tensor:
    """The part of every graph: each class is shuffled and dealt like cards."""
    g, part, at = torch.Generator().manual_seed(seed), torch.zeros(len(labels), dtype=torch.long), 0
    for label in (0, 1):
        mine = torch.tensor([i for i, own in enumerate(labels) if own == label])
        part[mine[torch.randperm(len(mine), generator=g)]] = (torch.arange(len(mine)) + at) % parts
        at += len(mine)
    return part


def batched(graphs: Sequence[LabelledGraph]) -> tuple[Tensor, Tensor, Tensor]:
    """Several graphs as one: features, edges, and the graph of every node."""
    sizes = torch.tensor([len(g.x) for g in graphs])
    starts = (sizes.cumsum(0) - sizes).tolist()
    edges = torch.cat([g.edge_index + start for g, start in zip(graphs, starts, strict=True)], 1)
    return torch.cat([g.x for g in graphs]), edges, torch.repeat_interleave(torch.arange(len(graphs)), sizes)


class GIN(nn.Module):
    """The sum over neighbours and the node itself, then two dense layers, which batch norms may follow."""

    def __init__(self, inputs: int, outputs: int, norms: bool = False) -> None:
        super().__init__()
        first, second = nn.Linear(inputs, outputs), nn.Linear(outputs, outputs)
        parts = [first, nn.BatchNorm1d(outputs), nn.ReLU(), second, nn.BatchNorm1d(outputs)]
        self.dense = nn.Sequential(*(parts if norms else [first, nn.ReLU(), second]))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """The nodes' new values."""
        source, target = edge_index
        new: Tensor = self.dense(x + torch.zeros_like(x).index_add(0, target, x[source]))
        return new


class GCN(nn.Module):
    """A dense layer, then the sum over neighbours and the node itself, with weights by their degrees."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """The nodes' new values."""
        source, target = torch.cat([edge_index, torch.arange(len(x), device=x.device).expand(2, -1)], 1)
        scale = torch.bincount(target, minlength=len(x)).to(x).rsqrt()
        h = self.dense(x)
        return torch.zeros_like(h).index_add(0, target, (scale[source] * scale[target])[:, None] * h[source])


class GraphNet(nn.Module):
    """Three graph layers with ReLUs, the sum or mean over all nodes, and a linear head."""

    def __init__(
        self, kind: Callable[[int, int], nn.Module], features: int, width: int = 32, pool: str = "sum"
    ) -> None:  # fmt: skip
        super().__init__()
        self.pool = pool
        self.convs = nn.ModuleList(kind(i, o) for i, o in itertools.pairwise([features, width, width, width]))
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """The logits of every graph."""
        for conv in self.convs:
            x = torch.relu(conv(x, edge_index))
        pooled = x.new_zeros(int(batch.max()) + 1, x.shape[1]).index_add(0, batch, x)
        if self.pool == "mean":
            pooled = pooled / torch.bincount(batch).to(pooled)[:, None]
        logits: Tensor = self.head(pooled)
        return logits


def train(model: nn.Module, graphs: Sequence[LabelledGraph], epochs: int, size: int = 32, rate: float = 5e-3) -> None:
    """Adam with a falling rate and a fixed number of epochs, so that no graph is spent on stopping early."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        order = torch.randperm(len(graphs)).tolist()
        for begin in range(0, len(order), size):
            some = [graphs[i] for i in order[begin : begin + size]]
            optimizer.zero_grad()
            F.cross_entropy(model(*batched(some)), torch.tensor([g.label for g in some])).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        schedule.step()
    model.eval()


def connected(graph: LabelledGraph, size: int) -> list[list[int]]:
    """All connected sets of so many nodes."""
    near = [set(graph.edge_index[1][graph.edge_index[0] == i].tolist()) for i in range(len(graph.x))]
    found: set[frozenset[int]] = {frozenset([i]) for i in range(len(graph.x))}
    for _ in range(size - 1):
        found = {nodes | {i} for nodes in found for i in _around(nodes, near)}
    return sorted(sorted(nodes) for nodes in found)


def _around(nodes: frozenset[int], near: list[set[int]]) -> Iterator[int]:
    return (j for i in nodes for j in near[i] if j not in nodes)

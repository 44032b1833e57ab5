"""Molecules with known causes of mutagenicity, a graph network that learns them, and a fixed way to test it.

Nothing is chosen on test molecules. They are dealt into ten parts, each class evenly; every molecule is predicted, and
explained, by the network that was trained without its part.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it still scripts some of its classes
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GINConv, global_add_pool

from nrm.reproduce import graphs as plain
from nrm.reproduce.graphs import ATOMS

__all__ = ["ATOMS", "GIN", "accuracy", "deal", "neighbourhood", "read_mutag", "read_mutagenicity", "train"]
__all__ += ["undirected"]


def read_mutag(home: Path) -> list[Data]:
    """The molecules, with a mark on every edge between atoms of the ground truth."""
    return [
        Data(x=g.x, edge_index=g.edge_index, y=torch.tensor([g.label]), truth=g.bonds) for g in plain.read_mutag(home)
    ]


def read_mutagenicity(home: Path) -> list[Data]:
    """The molecules of a TUDataset, with a mark on every edge of a known group."""
    return [
        Data(x=g.x, edge_index=g.edge_index, y=torch.tensor([g.label]), truth=g.bonds)
        for g in plain.read_mutagenicity(home)
    ]


def deal(graphs: list[Data], parts: int = 10, seed: int = 0) -> Tensor:
    """The part of every molecule."""
    return plain.deal([int(graph.y) for graph in graphs], parts, seed)


class GIN(nn.Module):
    """Graph layers of two linear layers each, with batch norms; atoms are pooled; a linear head."""

    def __init__(self, features: int, pool: Callable[..., Tensor] = global_add_pool, width: int = 32) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            GINConv(nn.Sequential(
                nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU(), nn.Linear(o, o), nn.BatchNorm1d(o), nn.ReLU()
            ))
            for i, o in itertools.pairwise([features, width, width, width])
        )  # fmt: skip
        self.pool = pool
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index)
        return self.head(F.dropout(self.pool(x, batch), 0.5, self.training))


def train(
    graphs: list[Data], seed: int, epochs: int = 60, batch: int = 32, pool: Callable[..., Tensor] = global_add_pool
) -> GIN:
    """Adam with a falling rate and a fixed number of epochs, so that no molecule is spent on stopping early.

    The recipe was the best of five for MUTAG (other depths, widths, sums over all layers' pools) on molecules held out
    inside the nine parts that a network learns from.
    """
    torch.manual_seed(seed)
    model = GIN(graphs[0].num_features, pool)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for some in DataLoader(graphs, batch_size=batch, shuffle=True, drop_last=len(graphs) % batch == 1):
            optimizer.zero_grad()
            F.cross_entropy(model(some.x, some.edge_index, some.batch), some.y).backward()
            optimizer.step()
        schedule.step()
    return model.eval()


def accuracy(model: GIN, graphs: list[Data]) -> float:
    """The share of molecules whose class is right."""
    with torch.no_grad():
        right = [model(b.x, b.edge_index, b.batch).argmax(1) == b.y for b in DataLoader(graphs, batch_size=256)]
    return float(torch.cat(right).double().mean())


def neighbourhood(graph: Data, start: int, size: int) -> list[int]:
    """A connected set of atoms around one of them."""
    found = [start]
    for node in found:
        near = graph.edge_index[1][graph.edge_index[0] == node].tolist()
        found += [i for i in near if i not in found]
        if len(found) >= size:
            break
    return found[:size]


def undirected(graph: Data, score: Tensor) -> Tensor:
    """Both directions of a bond have the sum of their scores."""
    number = {pair: k for k, pair in enumerate(map(tuple, graph.edge_index.T.tolist()))}
    return score + score[torch.tensor([number[b, a] for a, b in graph.edge_index.T.tolist()])]

"""Molecules: a graph network is trained, its subgraphs are checked walk by walk, and its edges are ranked.

The edges that are held responsible for mutagenicity are known: in Mutagenicity those of NO2 and NH2 groups, in MUTAG
those between carbons of three neighbours that the ground truth names (every molecule of MUTAG has an NO2 group). How
well they are found is the area under the ROC curve over the edges of a molecule, averaged over the mutagenic test
molecules, beside GNNExplainer and the gradient of the edges' weights, all on the same model in the same run. The
degrees of an edge's ends know no model: what they find as well needs no explanation. GNNExplainer starts from halved
messages, which a network that sums over nodes has never seen; there its gradients may point the other way. Needs the
real data and the extra ``graph``.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import os
import pathlib
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import nrm

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data
    from torch_geometric.explain import Explainer, GNNExplainer
    from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GINConv, global_add_pool, global_mean_pool

ROOT = pathlib.Path(__file__).resolve().parents[1]
HOME = pathlib.Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data") / "graphs"
MUTAGEN = {"MUTAG": 1, "Mutagenicity": 0}
CLASSES = {0: 0, 2: 1}  # as MUTAG.txt has them: 2 is mutagenic
POOLS = {"MUTAG": global_add_pool, "Mutagenicity": global_mean_pool}


def read_mutag() -> list[Data]:
    """The molecules in the order of the ground truth: an atom and its neighbours per line."""
    lines = (HOME / "MUTAG" / "MUTAG.txt").read_text().splitlines()
    truth = [[int(i) for i in line.split()] for line in (HOME / "MUTAG" / "MUTAG_ground_truth.txt").open()]
    graphs, at = [], 1
    for known in truth:
        size, label = map(int, lines[at].split())
        rows = [[int(i) for i in line.split()] for line in lines[at + 1 : at + 1 + size]]
        at += 1 + size
        edges = torch.tensor([(i, j) for i, row in enumerate(rows) for j in row[2:]]).T
        inside = torch.zeros(size, dtype=torch.bool)
        inside[known] = True
        graphs.append(Data(
            x=F.one_hot(torch.tensor([row[0] for row in rows]), 7).float(), edge_index=edges,
            y=torch.tensor([CLASSES[label]]), truth=inside[edges[0]] & inside[edges[1]],
        ))  # fmt: skip
    return graphs


def read_mutagenicity() -> list[Data]:
    """The molecules of a TUDataset, with a mark on every edge of a known group."""

    def numbers(name: str) -> Tensor:
        with gzip.open(HOME / "Mutagenicity" / f"Mutagenicity_{name}.txt.gz", "rt") as file:
            return torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.int64))

    edges, graph, atoms = numbers("A").T - 1, numbers("graph_indicator") - 1, numbers("node_labels")
    labels, truth = numbers("graph_labels"), numbers("edge_gt").bool()
    first, kinds = torch.searchsorted(graph, torch.arange(len(labels))), int(atoms.max()) + 1
    home = graph[edges[0]]
    return [
        Data(
            x=F.one_hot(atoms[graph == g], kinds).float(), edge_index=edges[:, home == g] - first[g],
            y=labels[g : g + 1], truth=truth[home == g],
        )
        for g in range(len(labels))
    ]  # fmt: skip


class GIN(nn.Module):
    """Three graph layers of two linear layers each, a pooling, a head."""

    def __init__(self, features: int, pool: Callable[..., Tensor], width: int = 32) -> None:
        super().__init__()
        sizes = [features, width, width, width]
        self.convs = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU(), nn.Linear(o, o), nn.ReLU()))
            for i, o in itertools.pairwise(sizes)
        )
        self.pool = pool
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index)
        return self.head(F.dropout(self.pool(x, batch), 0.5, self.training))


def split(graphs: list[Data], seed: int) -> tuple[list[Data], list[Data]]:
    """Four fifths to train, one fifth to test, in every class."""
    if {int(graph.y) for graph in graphs} != {0, 1}:
        raise ValueError(f"the classes are {sorted({int(graph.y) for graph in graphs})} instead of 0 and 1")
    g = torch.Generator().manual_seed(seed)
    train, test = [], []
    for label in (0, 1):
        mine = [graph for graph in graphs if int(graph.y) == label]
        order = torch.randperm(len(mine), generator=g).tolist()
        cut = len(mine) // 5
        test += [mine[i] for i in order[:cut]]
        train += [mine[i] for i in order[cut:]]
    return train, test


def train(graphs: list[Data], pool: Callable[..., Tensor], epochs: int, seed: int) -> GIN:
    """Adam with a falling rate and a fixed number of epochs: nothing is chosen on the test molecules.

    The recipe is the best of five on validation parts of the training molecules of MUTAG's first split.
    """
    torch.manual_seed(seed)
    model = GIN(graphs[0].num_features, pool)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for batch in DataLoader(graphs, batch_size=32 if len(graphs) < 1000 else 128, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y).backward()
            optimizer.step()
        schedule.step()
    return model.eval()


def accuracy(model: GIN, graphs: list[Data]) -> float:
    """The share of molecules whose class is right."""
    with torch.no_grad():
        right = [
            model(b.x, b.edge_index, b.batch).argmax(1) == b.y for b in DataLoader(graphs, batch_size=256)
        ]  # fmt: skip
    return float(torch.cat(right).double().mean())


# ---- scores of edges -----------------------------------------------------------------------------------------------


def by_measure(model: GIN, graph: Data, target: int, rules: object) -> Tensor:
    """The relevance of the walks along an edge, summed over the layers in which they take it."""
    R = nrm.measure(model, (graph.x, graph.edge_index), target=target, rules=rules, dtype=torch.float64)
    total: Tensor = sum(R(R[f"convs.{k}"].edges)[0] for k in range(3))  # type: ignore[assignment]
    # Relevance is a share of the logit: a negative logit turns what speaks for the class into negative shares.
    return total * R.value.sign()


def by_gradient(model: GIN, graph: Data, target: int) -> Tensor:
    """The size of the gradient of a weight on every message."""
    mask = nn.Parameter(torch.ones(graph.edge_index.shape[1]))
    set_masks(model, mask, graph.edge_index, apply_sigmoid=False)
    try:
        (gradient,) = torch.autograd.grad(model(graph.x, graph.edge_index)[0, target], mask)
    finally:
        clear_masks(model)
    return gradient.abs()


def by_explainer(model: GIN, graph: Data, target: int) -> Tensor:
    """The edge mask of GNNExplainer."""
    torch.manual_seed(0)
    explainer = Explainer(
        model, GNNExplainer(epochs=200), explanation_type="phenomenon", edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "graph", "return_type": "raw"},
    )  # fmt: skip
    mask: Tensor = explainer(graph.x, graph.edge_index, target=torch.tensor([target])).edge_mask
    return mask


def undirected(graph: Data, score: Tensor) -> Tensor:
    """Both directions of a bond have the sum of their scores."""
    number = {pair: k for k, pair in enumerate(map(tuple, graph.edge_index.T.tolist()))}
    back = torch.tensor([number[b, a] for a, b in graph.edge_index.T.tolist()])
    return score + score[back]


def by_degree(model: GIN, graph: Data, target: int) -> Tensor:
    """No explanation at all: how many neighbours the ends of an edge have."""
    degree = torch.bincount(graph.edge_index[0], minlength=graph.num_nodes).float()
    return degree[graph.edge_index].sum(0)


METHODS: dict[str, Callable[[GIN, Data, int], Tensor]] = {
    "nrm, LRP-0": lambda m, g, t: by_measure(m, g, t, "lrp-0"),
    "nrm, gamma 0.25": lambda m, g, t: by_measure(m, g, t, nrm.Gamma(0.25)),
    "nrm, z+": lambda m, g, t: by_measure(m, g, t, nrm.ZPlus()),
    "gradient": by_gradient,
    "GNNExplainer": by_explainer,
    "degrees alone": by_degree,
}


def rank(model: GIN, graphs: list[Data], target: int) -> list[tuple[str, float, float, float, int]]:
    """Per method: the mean AUC over molecules, its standard error, seconds per molecule, and how many it refused."""
    rows = []
    for name, method in METHODS.items():
        found, refused, begin = [], 0, time.perf_counter()
        for graph in graphs:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", nrm.NrmWarning)
                try:
                    score = undirected(graph, method(model, graph, target).detach())
                except nrm.NrmError:
                    refused += 1
                    continue
            found.append(roc_auc_score(graph.truth.numpy(), score.numpy()))
        seconds = (time.perf_counter() - begin) / len(graphs)
        mean, error = (np.mean(found), np.std(found) / np.sqrt(len(found))) if found else (np.nan, np.nan)
        rows.append((name, float(mean), float(error), seconds, refused))
    return rows


def check_subgraphs(model: GIN, graphs: list[Data], target: int) -> tuple[float, float, int]:
    """Subgraph relevance by message passing against the sum over its node walks, each asked for by itself.

    The largest deviation, how much faster message passing is, and the number of walks.
    """
    deviation, walks, fast, slow = 0.0, 0, 0.0, 0.0
    for graph in graphs:
        R = nrm.measure(model, (graph.x, graph.edge_index), target=target, rules="lrp-0", dtype=torch.float64)
        layers = [R.input, *(R[f"convs.{k}"] for k in range(3))]
        near = {(a, b) for a, b in graph.edge_index.T.tolist()} | {(i, i) for i in range(graph.num_nodes)}
        nodes = [0, *sorted({b for a, b in near if a == 0} - {0})][:3]
        begin = time.perf_counter()
        whole = float(R(*(layer.position(nodes) for layer in layers)))
        middle = time.perf_counter()
        total = 0.0
        for walk in _walks(nodes, near, len(layers)):
            total += float(R(*(layer.position(i) for layer, i in zip(layers, walk, strict=True))))
            walks += 1
        fast, slow = fast + middle - begin, slow + time.perf_counter() - middle
        deviation = max(deviation, abs(whole - total))
    return deviation, slow / fast, walks


def _walks(nodes: list[int], near: set[tuple[int, int]], length: int) -> list[tuple[int, ...]]:
    walks = [(i,) for i in nodes]
    for _ in range(length - 1):
        walks = [(*walk, j) for walk in walks for j in nodes if (walk[-1], j) in near]
    return walks


def main() -> None:
    """Trains, checks, ranks, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=[*MUTAGEN, "both"], default="both")
    parser.add_argument("--splits", type=int, default=5, help="accuracy over so many splits of MUTAG")
    parser.add_argument("--molecules", type=int, default=60, help="at most so many are ranked")
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()
    for name in MUTAGEN if options.data == "both" else [options.data]:
        graphs = read_mutag() if name == "MUTAG" else read_mutagenicity()
        tests = []
        for seed in range(options.splits if name == "MUTAG" else 1):
            learned, held = split(graphs, seed)
            model = train(learned, POOLS[name], options.epochs, seed)
            tests.append(accuracy(model, held))
            if seed == 0:
                explained, first = held, model
        print(f"{name}: {len(graphs)} molecules, test accuracy {tests[0]:.3f}", end="")
        majority = max(np.mean([int(g.y) == label for g in explained]) for label in (0, 1))
        print(f", larger class {majority:.3f}", end="")
        print(f" (over {len(tests)} splits {np.mean(tests):.3f} +- {np.std(tests):.3f})" if len(tests) > 1 else "")
        target = MUTAGEN[name]
        deviation, ratio, walks = check_subgraphs(first, explained[:8], target)
        print(f"subgraphs: {walks} walks, deviation {deviation:.1e}, message passing {ratio:.0f} times faster")
        known = [g for g in explained if int(g.y) == target and 0 < int(g.truth.sum()) < len(g.truth)]
        print(
            f"edges of {min(len(known), options.molecules)} of {len(known)} mutagenic test molecules with known edges"
        )
        for method, mean, error, seconds, refused in rank(first, known[: options.molecules], target):
            note = f", {refused} refused as untrustworthy" if refused else ""
            print(f"  {method:<16} AUC {mean:.3f} +- {error:.3f}   {seconds:.3f} s per molecule{note}")


if __name__ == "__main__":
    main()

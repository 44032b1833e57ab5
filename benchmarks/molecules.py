"""Molecules: a graph network is trained, its subgraphs are checked walk by walk, and its edges are ranked.

The edges that are held responsible for mutagenicity are known: in Mutagenicity those of NO2 and NH2 groups, in MUTAG
those between the carbons of ring systems that the ground truth names (every molecule of MUTAG has an NO2 group). How
well they are found is the area under the ROC curve over the edges of a molecule, averaged over mutagenic molecules,
each explained by a network that never saw it, beside GNNExplainer and the gradient of the edges' weights on the same
networks. The degrees of an edge's ends know no model: what they find as well needs no explanation. Needs the real data
($NRM_DATA or ../shared/data), scikit-learn and the extra ``graph``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import nrm  # noqa: E402
from real.molecules import GIN, accuracy, deal, neighbourhood, read_mutag, read_mutagenicity, train, undirected  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it still scripts some of its classes
    from torch_geometric.data import Data
    from torch_geometric.explain import Explainer, GNNExplainer
    from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
    from torch_geometric.nn import global_mean_pool

HOME = Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data") / "graphs"
MUTAGEN = {"MUTAG": 1, "Mutagenicity": 0}
Method = Callable[[GIN, Data, int], Tensor]


def measured(model: GIN, graph: Data, target: int, rules: object, *, against: bool = True) -> nrm.Measure:
    """The measure of the mutagenic logit, or of what it is ahead of the other one by."""
    inputs = (graph.x.double(), graph.edge_index)
    if not against:
        return nrm.measure(model.double(), inputs, target=target, rules=rules, bias="input")
    return nrm.measure(
        model.double(), inputs, output=lambda o: o[:, target] - o[:, 1 - target], rules=rules, bias="input"
    )


def by_measure(rules: object, *, against: bool = True, last: bool = False) -> Method:
    """The relevance of the walks along an edge: in the last layer, or summed over the layers in which they take it."""

    def score(model: GIN, graph: Data, target: int) -> Tensor:
        R = measured(model, graph, target, rules, against=against)
        layers = R.find("convs.?")[-1:] if last else R.find("convs.?")
        total: Tensor = sum(R(conv.edges)[0] for conv in layers)  # type: ignore[assignment]
        # Relevance is a share of the output: a negative one turns what speaks for the class into negative shares.
        return total * R.value.sign()

    return score


def by_gradient(*, against: bool = True) -> Method:
    """The size of the gradient of a weight on every message."""

    def score(model: GIN, graph: Data, target: int) -> Tensor:
        mask = nn.Parameter(torch.ones(graph.edge_index.shape[1]))
        set_masks(model.float(), mask, graph.edge_index, apply_sigmoid=False)
        try:
            logits = model(graph.x, graph.edge_index)[0]
            value = logits[target] - logits[1 - target] if against else logits[target]
            (gradient,) = torch.autograd.grad(value, mask)
        finally:
            clear_masks(model)
        return gradient.abs()

    return score


def by_explainer(model: GIN, graph: Data, target: int) -> Tensor:
    """The edge mask of GNNExplainer."""
    torch.manual_seed(0)
    explainer = Explainer(
        model.float(), GNNExplainer(epochs=200), explanation_type="phenomenon", edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "graph", "return_type": "raw"},
    )  # fmt: skip
    mask: Tensor = explainer(graph.x, graph.edge_index, target=torch.tensor([target])).edge_mask
    return mask


def by_degree(model: GIN, graph: Data, target: int) -> Tensor:
    """No explanation at all: how many neighbours the ends of an edge have."""
    degree = torch.bincount(graph.edge_index[0], minlength=graph.num_nodes).float()
    return degree[graph.edge_index].sum(0)


METHODS: dict[str, Method] = {
    "nrm, LRP-0, one logit": by_measure("lrp-0", against=False),
    "nrm, LRP-0": by_measure("lrp-0"),
    "nrm, LRP-0, last layer": by_measure("lrp-0", last=True),
    "nrm, gamma 0.25": by_measure(nrm.Gamma(0.25)),
    "nrm, gamma 0.25, last layer": by_measure(nrm.Gamma(0.25), last=True),
    "nrm, z+": by_measure(nrm.ZPlus()),
    "gradient, one logit": by_gradient(against=False),
    "gradient": by_gradient(),
    "GNNExplainer": by_explainer,
    "degrees alone": by_degree,
}


def rank(explained: list[tuple[GIN, Data]], target: int) -> list[tuple[str, float, float, float, int]]:
    """Per method: the mean AUC over molecules, its standard error, seconds per molecule, and how many it refused."""
    rows = []
    for name, method in METHODS.items():
        found, refused, begin = [], 0, time.perf_counter()
        for model, graph in explained:
            try:
                score = undirected(graph, method(model, graph, target).detach())
            except nrm.NrmError:
                refused += 1
                continue
            found.append(roc_auc_score(graph.truth.numpy(), score.numpy()))
        seconds = (time.perf_counter() - begin) / len(explained)
        mean, error = (np.mean(found), np.std(found) / np.sqrt(len(found))) if found else (np.nan, np.nan)
        rows.append((name, float(mean), float(error), seconds, refused))
    return rows


def check_subgraphs(explained: list[tuple[GIN, Data]], target: int) -> tuple[float, float, int]:
    """Subgraph relevance by message passing against the sum over its node walks, each asked for by itself.

    The largest deviation beside the total variation of the walks, how much faster message passing is, and the number of
    walks. The tests have the same against a list of walks that is made without the library.
    """
    deviation, walks, fast, slow = 0.0, 0, 0.0, 0.0
    for model, graph in explained:
        R = measured(model, graph, target, "lrp-0")
        layers = [R.input, *R.find("convs.?")]
        near = {(a, b) for a, b in graph.edge_index.T.tolist()} | {(i, i) for i in range(graph.num_nodes)}
        nodes = neighbourhood(graph, 0, 3)
        begin = time.perf_counter()
        whole = float(R(*(layer.position(nodes) for layer in layers)))
        middle = time.perf_counter()
        found = [
            float(R(*(layer.position(i) for layer, i in zip(layers, walk, strict=True))))
            for walk in _walks(nodes, near, len(layers))
        ]
        fast, slow, walks = fast + middle - begin, slow + time.perf_counter() - middle, walks + len(found)
        deviation = max(deviation, abs(whole - sum(found)) / max(sum(map(abs, found)), 1e-300))
    return deviation, slow / fast, walks


def _walks(nodes: list[int], near: set[tuple[int, int]], length: int) -> list[tuple[int, ...]]:
    walks = [(i,) for i in nodes]
    for _ in range(length - 1):
        walks = [(*walk, j) for walk in walks for j in nodes if (walk[-1], j) in near]
    return walks


def learn(name: str, graphs: list[Data], options: Any) -> tuple[list[float], list[tuple[GIN, Data]]]:
    """The test accuracy of every part, and every molecule of the tested parts beside a network that never saw it."""
    part = deal(graphs, seed=options.seed).tolist()
    recipe = {} if name == "MUTAG" else {"batch": 128, "pool": global_mean_pool}
    tests, explained = [], []
    for k in range(10 if name == "MUTAG" else 1):
        held = [g for g, p in zip(graphs, part, strict=True) if p == k]
        model = train([g for g, p in zip(graphs, part, strict=True) if p != k], k, epochs=options.epochs, **recipe)
        tests.append(accuracy(model, held))
        explained += [(model, g) for g in held]
    return tests, explained


def main() -> None:
    """Trains, checks, ranks, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=[*MUTAGEN, "both"], default="both")
    parser.add_argument("--molecules", type=int, default=125, help="at most so many are ranked")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the ten parts")
    options = parser.parse_args()
    warnings.simplefilter("ignore", nrm.NrmWarning)
    for name in MUTAGEN if options.data == "both" else [options.data]:
        graphs = read_mutag(HOME / name) if name == "MUTAG" else read_mutagenicity(HOME / name)
        tests, explained = learn(name, graphs, options)
        majority = max(np.mean([int(g.y) == label for _, g in explained]) for label in (0, 1))
        print(f"{name}: {len(graphs)} molecules, test accuracy {np.mean(tests):.3f}", end="")
        print(f" +- {np.std(tests):.3f} over {len(tests)} parts (larger class {majority:.3f})")
        target = MUTAGEN[name]
        deviation, ratio, walks = check_subgraphs(explained[:8], target)
        print(f"subgraphs: {walks} walks, deviation {deviation:.1e}, message passing {ratio:.0f} times faster")
        known = [(m, g) for m, g in explained if int(g.y) == target and 0 < int(g.truth.sum()) < len(g.truth)]
        count = min(len(known), options.molecules)
        shares = [float(measured(m, g, target, "lrp-0")(nrm.input.all)) for m, g in known[:count]]
        print(f"share of the walks that begin at atoms, LRP-0: {np.median(shares):.1f} (median); biases have the rest")
        print(f"edges of {count} of {len(known)} mutagenic molecules with known edges, none of them seen in training")
        for method, mean, error, seconds, refused in rank(known[:count], target):
            note = f", {refused} refused as untrustworthy" if refused else ""
            print(f"  {method:<28} AUC {mean:.3f} +- {error:.3f}   {seconds:.3f} s per molecule{note}", flush=True)


if __name__ == "__main__":
    main()

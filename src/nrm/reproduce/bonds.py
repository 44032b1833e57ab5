"""Bonds that are known to matter, in networks on Mutagenicity: how well relevance finds them, and what removal says.

Ten parts, a network for each of the first six, trained on the other nine. Bonds of NO2 and NH2 groups are known to make
a molecule mutagenic; for every mutagenic molecule that has any, bonds are ranked, and the ranking's AUC is its
probability to place a known bond above another one. The effect of removing a bond is ranked as well: it is what the
network itself says, whatever is known. Three networks choose, the others report.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nrm.evaluate import interval
from nrm.measure import Measure, measure
from nrm.reproduce.drawing import panels
from nrm.reproduce.experiment import Experiment, Outcome, Setting, UnitPlan
from nrm.reproduce.gnn import HALVES, Rules
from nrm.reproduce.graphs import GIN, GraphNet, LabelledGraph, batched, deal, motifs, mutagenicity, train
from nrm.reproduce.store import Tensors, Unit
from nrm.reproduce.tables import TableRow
from nrm.rules import LRP0, Gamma, ZPlus

NETWORKS = 6
MOLECULES = 40
"""So many molecules of a part are explained."""
MUTAGENIC, CARBON = 0, 0
"""The class of Mutagenicity, and the number of its most frequent atom."""
RULES: dict[str, tuple[Rules, str]] = {
    "lrp-0": (LRP0(), "input"), "lrp-0, biases ignored": (LRP0(), "ignore"), "gamma 0.25": (Gamma(0.25), "input"),
    "gamma 1": (Gamma(1.0), "input"), "z+": (ZPlus(), "input"),
    "gamma 4, head lrp-0": ({"head": LRP0(), "*": Gamma(4.0)}, "input"),
    "z+, head lrp-0": ({"head": LRP0(), "*": ZPlus()}, "input"),
}  # fmt: skip
METHODS = (*RULES, "contrast, no features", "contrast, all carbon", "removal", "degree")
LAYERS = ("sum", "layer 1", "layer 2", "layer 3")


@dataclass(frozen=True, eq=False)
class BondSubject:
    """Molecules dealt into ten parts, and the network that learned from all parts but one."""

    setting: Setting
    name: str
    graphs: list[LabelledGraph]
    parts: list[int]
    mutagenic: int

    def network(self, part: int) -> nn.Module:
        """Trained once, then kept."""

        def fresh() -> GraphNet:
            return GraphNet(partial(GIN, norms=True), self.graphs[0].x.shape[1], pool="mean")

        def work() -> Tensors:
            torch.manual_seed(part)
            model = fresh()
            learned = [g for g, p in zip(self.graphs, self.parts, strict=True) if p != part]
            train(model, learned, 60, min(128, len(learned) // 4), rate=1e-2)
            return dict(model.state_dict())

        model = fresh()
        model.load_state_dict(self.setting.store.keep(f"weights-{part}", work))
        return model.double().eval()

    def known(self, part: int) -> list[int]:
        """The molecules of a part that are mutagenic and have bonds that are known to matter, and others."""
        return [
            i for i, (g, p) in enumerate(zip(self.graphs, self.parts, strict=True))
            if p == part and g.label == self.mutagenic and 0 < int(g.bonds.sum()) < len(g.bonds)
        ]  # fmt: skip


def subject(setting: Setting) -> BondSubject:
    """Mutagenicity, or trees with a planted motif."""
    if setting.embedded:
        graphs, name, mutagenic = motifs(120), "planted motifs", 1
    else:
        graphs, name, mutagenic = mutagenicity(setting.data), "Mutagenicity", MUTAGENIC
    return BondSubject(setting, name, graphs, deal([g.label for g in graphs]).tolist(), mutagenic)


def auc(known: Tensor, score: Tensor) -> float:
    """The probability that a known bond has a higher score than another one, ties counted half.

    >>> auc(torch.tensor([True, False, False]), torch.tensor([2.0, 2.0, 1.0]))
    0.75
    """
    ahead = score[known][:, None] - score[~known][None]
    return float(((ahead > 0).double() + (ahead == 0).double() / 2).mean())


def undirected(graph: LabelledGraph, score: Tensor) -> Tensor:
    """Both directions of a bond have the sum of their scores."""
    number = {pair: k for k, pair in enumerate(map(tuple, graph.edge_index.T.tolist()))}
    return score + score[torch.tensor([number[b, a] for a, b in graph.edge_index.T.tolist()])]


def bond_scores(model: nn.Module, graph: LabelledGraph, mutagenic: int) -> Iterator[tuple[str, Tensor]]:
    """For every method the scores of all bonds, ``(layers, edges)``; of one without layers a single row."""
    x, edges, batch = batched([graph])
    x = x.double()

    def output(o: Tensor) -> Tensor:
        return o[:, mutagenic] - o[:, 1 - mutagenic]

    def along(R: Measure) -> Tensor:
        return torch.stack([R(layer.edges)[0] * R.value for layer in R.find("convs.?")])

    for name, (rule, bias) in RULES.items():
        yield (
            name,
            along(
                measure(model, (x, edges, batch), output=output, rules=rule, bias=bias, zero="uniform", progress=False)
            ),
        )
    carbon = F.one_hot(torch.full((len(x),), CARBON), x.shape[1]).to(x)
    for name, other in (("contrast, no features", torch.zeros_like(x)), ("contrast, all carbon", carbon)):
        yield (
            name,
            along(measure(model, (x, edges, batch), against=(other, edges, batch), output=output, progress=False)),
        )
    yield "removal", _removal(lambda e: output(model(x, e, batch)), edges)[None]
    degree = torch.bincount(edges[0], minlength=len(x)).double()
    yield "degree", degree[edges].sum(0)[None]


@torch.no_grad()
def _removal(run: Any, edges: Tensor) -> Tensor:
    """What the output loses without a bond, in both directions."""
    whole, (a, b) = run(edges), edges
    lost = [run(edges[:, ~(((a == i) & (b == j)) | ((a == j) & (b == i)))]) for i, j in edges.T.tolist()]
    effects: Tensor = whole - torch.cat(lost)
    return effects


def _judge(found: BondSubject, part: int, i: int) -> Tensors:
    """The AUC of every method and layer, and how it agrees with removal."""
    graph, model = found.graphs[i], found.network(part)
    kept: Tensors = {}
    scores = dict(bond_scores(model, graph, found.mutagenic))
    removal = undirected(graph, scores["removal"][0]) / 2
    for name, rows in scores.items():
        both = [undirected(graph, row) for row in (rows.sum(0), *rows)][: 1 if len(rows) == 1 else None]
        kept[f"{name}/auc"] = torch.tensor([auc(graph.bonds, row) for row in both], dtype=torch.float64)
        pairs = torch.stack([torch.corrcoef(torch.stack([row, removal]))[0, 1] for row in both])
        kept[f"{name}/agreement"] = pairs
    return kept


def _plan(setting: Setting) -> UnitPlan:
    found = subject(setting)
    chosen = {part: found.known(part)[: setting.samples or MOLECULES] for part in range(NETWORKS)}
    units = [Unit(f"{part}-{i:04d}", partial(_judge, found, part, i)) for part, mine in chosen.items() for i in mine]

    def finish() -> Outcome:
        rows: list[TableRow] = []
        facts: dict[str, Any] = {"graphs": found.name, "explained": "mutagenic logit less the other"}
        for half, parts in zip(HALVES, (range(NETWORKS // 2), range(NETWORKS // 2, NETWORKS)), strict=True):
            tables = [[setting.store.read(f"{part}-{i:04d}") for i in chosen[part]] for part in parts]
            rows += [row for method in METHODS for row in _rows(tables, method, half)]
        return Outcome(rows, facts, {"bonds": _figure(rows)})

    return units, finish


def _rows(tables: list[list[Tensors]], method: str, half: str) -> Iterator[TableRow]:
    """A row for every layer: the mean over molecules with its interval, and the mean of every network."""
    per_network = [torch.stack([part[f"{method}/auc"] for part in parts]) for parts in tables if parts]
    agreement = torch.cat([torch.stack([part[f"{method}/agreement"] for part in parts]) for parts in tables if parts])
    whole = torch.cat(per_network)
    for k, layer in enumerate(LAYERS[: whole.shape[1]]):
        defined = agreement[:, k][torch.isfinite(agreement[:, k])]
        yield {
            "half": half, "method": method, "bonds of": layer, "samples": len(whole), "auc": float(whole[:, k].mean()),
            "auc_ci": list(interval(whole[:, k])),
            "networks": " ".join(f"{float(network[:, k].mean()):.2f}" for network in per_network),
            "agreement with removal": float(defined.mean()) if len(defined) else None,
        }  # fmt: skip


def _figure(rows: list[TableRow]) -> Any:
    """The AUC of the half that reports, by layer."""
    figure, axes = panels(1, 1, 6.4, 4.0)
    ax, names = axes[0, 0], [m for m in METHODS if m not in ("degree",)]
    for layer, marker in zip(LAYERS, "os^v", strict=True):
        mine = {r["method"]: r["auc"] for r in rows if r["half"] == HALVES[1] and r["bonds of"] == layer}
        ax.plot([mine.get(n) for n in names], range(len(names)), marker, label=layer)
    ax.axvline(0.5, color="#b4b4b4", linewidth=1)
    ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("AUC of known bonds")
    ax.legend(frameon=False)
    return figure


BONDS = Experiment(
    "gnn-bonds", "Bonds that are known to matter", "beyond the paper's figures; its section on graph networks", _plan
)  # fmt: skip

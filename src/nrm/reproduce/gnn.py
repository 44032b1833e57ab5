"""Subgraphs in trained graph networks: their relevance beside what removing their nodes in every layer does.

Every graph is explained for its predicted class (less the other one), by a network that was trained without it. Rules
are chosen by every other graph, and reported by the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nrm.evaluate import METHODS, contribution, pearson, sc_k, scores
from nrm.measure import Measure, measure
from nrm.plot import graph as draw
from nrm.questions import Argument
from nrm.reproduce.drawing import correlation_figure, curves_figure, panels
from nrm.reproduce.experiment import Experiment, Outcome, Setting, UnitPlan
from nrm.reproduce.graphs import (
    ATOMS,
    GCN,
    GIN,
    GraphNet,
    LabelledGraph,
    batched,
    connected,
    deal,
    motifs,
    mutag,
    train,
)
from nrm.reproduce.store import Tensors, Unit
from nrm.reproduce.tables import TableRow, joined, rows_of
from nrm.rules import LRP0, Gamma, Rule, ZPlus

SAMPLES = 60
NETWORKS: dict[str, type[GIN] | type[GCN]] = {"GIN": GIN, "GCN": GCN}
Rules = Rule | dict[str, Rule]
RULES: dict[str, Rules] = {
    "gamma 0.25": Gamma(0.25), "gamma 1": Gamma(1.0), "lrp-0": LRP0(), "z+": ZPlus(),
    "gamma 4, head lrp-0": {"head": LRP0(), "*": Gamma(4.0)}, "z+, head lrp-0": {"head": LRP0(), "*": ZPlus()},
}  # fmt: skip
"""The last linear layer reads sums over nodes that argue for both classes: a rule of positive parts loses one side."""
TAKEN_APART = ("gamma 0.25", "z+, head lrp-0")
"""Rules whose joint relevance is also taken in the last layers alone, to see where agreement is lost."""
HALVES = ("chooses", "reports")
SHOWN = ("nrm (gamma 0.25)", "nrm (z+, head lrp-0)", "contrast", "lrp", "occlusion", "random")
SIZES = (3, 5)
MOST = 100
"""So many subgraphs of one graph are judged; of more, these are drawn."""
K = (1, 2, 3, 4, 5, 6, 8)
"""Every graph has as many subgraphs as the largest of these, so that sums can be averaged over graphs."""


@dataclass(frozen=True, eq=False)
class GraphSubject:
    """Graphs dealt into ten parts, and how a network for each part is found."""

    setting: Setting
    name: str
    graphs: list[LabelledGraph]
    parts: list[int]
    labels: tuple[str, ...]

    @property
    def order(self) -> list[int]:
        """Graphs part by part, so that few of them need few networks."""
        return sorted(range(len(self.graphs)), key=lambda i: self.parts[i])

    def network(self, kind: str, part: int) -> nn.Module:
        """A network that learned from all parts but one; trained once, then kept."""
        features = self.graphs[0].x.shape[1]

        def work() -> Tensors:
            torch.manual_seed(part)
            fresh = GraphNet(NETWORKS[kind], features)
            train(fresh, [g for g, p in zip(self.graphs, self.parts, strict=True) if p != part], 60)
            return dict(fresh.state_dict())

        model = GraphNet(NETWORKS[kind], features)
        model.load_state_dict(self.setting.store.keep(f"weights-{kind}-{part}", work))
        return model.double().eval()


def subject(setting: Setting) -> GraphSubject:
    """MUTAG, or trees with a planted motif."""
    graphs = motifs(80) if setting.embedded else mutag(setting.data)
    name, labels = ("planted motifs", ("", "1", "2")) if setting.embedded else ("MUTAG", ATOMS)
    return GraphSubject(setting, name, graphs, deal([g.label for g in graphs]).tolist(), labels)


def _copies(
    model: nn.Module, graph: LabelledGraph, count: int, rule: Rules | None, without: list[list[int]] | None = None
) -> Measure:
    """A graph as often as it has subgraphs: each copy is asked about one of them.

    ``without`` makes it a contrast against the graph in which each copy's own nodes have no features.
    """
    x, edges, batch = batched([graph] * count)
    with torch.no_grad():
        logits = model(*((t.double() if t.is_floating_point() else t) for t in batched([graph])))[0]
    top = int(logits.argmax())
    if without is not None:
        bare = x.double().clone()
        bare[[i + k * len(graph.x) for k, nodes in enumerate(without) for i in nodes]] = 0.0
        return measure(
            model, (x.double(), edges, batch), against=(bare, edges, batch), progress=False,
            output=lambda o: o[:, top] - o[:, 1 - top],
        )  # fmt: skip
    return measure(
        model, (x.double(), edges, batch), output=lambda o: o[:, top] - o[:, 1 - top], rules=rule, bias="input",
        zero="uniform", progress=False,
    )  # fmt: skip


def _sets(R: Measure, graph: LabelledGraph, subgraphs: list[list[int]]) -> list[Argument]:
    """The nodes of a subgraph in all layers: walks that never leave it."""
    own = [[i + k * len(graph.x) for i in nodes] for k, nodes in enumerate(subgraphs)]
    return [layer.position(own) for layer in (R.input, *R.find("convs.?"))]


def _subgraphs(graph: LabelledGraph, size: int) -> list[list[int]]:
    found = connected(graph, size)
    drawn = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))[:MOST]
    return [found[i] for i in sorted(drawn.tolist())]


def tables(
    model: nn.Module, graph: LabelledGraph, subgraphs: list[list[int]]
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Joint contributions of all subgraphs, the scores of every method, and the explained output."""
    C, value = torch.empty(0), torch.empty(0)
    own: dict[str, Tensor] = {}
    for name, rule in RULES.items():
        R = _copies(model, graph, len(subgraphs), rule)
        sets = _sets(R, graph, subgraphs)
        if not own:
            C, value = contribution(R, *sets)[None], R.value[:1]
            own = {method: scores(R, *sets, method=method)[None] for method in METHODS if method != "nrm"}
        else:
            own[f"lrp ({name})"] = scores(R, *sets, method="lrp")[None]
        own[f"nrm ({name})"] = scores(R, *sets)[None]
        for last in range(1, len(sets)) if name in TAKEN_APART else ():
            own[f"nrm in the last {last} ({name})"] = scores(R, *sets[-last:])[None]
    R = _copies(model, graph, len(subgraphs), None, subgraphs)
    own["contrast"] = scores(R, *_sets(R, graph, subgraphs))[None]
    return C, own, value


def _judge(found: GraphSubject, kind: str, i: int, size: int) -> Tensors:
    graph = found.graphs[i]
    model = found.network(kind, found.parts[i])
    C, own, value = tables(model, graph, _subgraphs(graph, size))
    with torch.no_grad():
        right = model(graph.x.double(), graph.edge_index, torch.zeros(len(graph.x), dtype=torch.long)).argmax(1)
    kept = {"value": value, "combinations": torch.tensor(C.shape[1]), "right": (right == graph.label).double()}
    return kept | _judged(C, own)


def _judged(C: Tensor, own: Mapping[str, Tensor]) -> Tensors:
    """How every method agrees with the contributions, as it is kept."""
    kept = {"k": torch.tensor(K)}
    for name, S in own.items():
        curve = sc_k(C, S)
        kept |= {f"{name}/pearson": pearson(C, S), f"{name}/sc": curve[:, : max(K)][:, kept["k"] - 1].clone(),
                 f"{name}/area": curve.mean(1)}  # fmt: skip
    return kept


def _plan(setting: Setting) -> UnitPlan:
    found = subject(setting)
    chosen = found.order[: setting.samples or SAMPLES]
    cases = [(kind, size) for kind in NETWORKS for size in SIZES]
    keys = {(kind, size): [f"{kind}-{size}-{i:03d}" for i in chosen] for kind, size in cases}
    units = [
        Unit(key, partial(_judge, found, kind, i, size))
        for (kind, size), mine in keys.items()
        for i, key in zip(chosen, mine, strict=True)
    ]

    def finish() -> Outcome:
        rows: list[TableRow] = []
        curves: dict[str, Tensors] = {}
        facts: dict[str, Any] = {"graphs": found.name, "explained": "predicted class less the other"}
        for (kind, size), mine in keys.items():
            parts = [setting.store.read(key) for key in mine]
            for begin, half in enumerate(HALVES):
                some = parts[begin::2] or parts
                table = joined(some)
                table["combinations"] = torch.stack([part["combinations"] for part in some]).double().mean()
                asked: dict[str, Any] = {
                    "order": 4,
                    "model": kind,
                    "bias": "input",
                    "rules": "gamma 0.25",
                    "half": half,
                }
                rows += [{"nodes": size, **row} for row in rows_of(table, **asked)]
            curves[f"{kind}, {size} nodes"] = {k: t for k, t in table.items() if k.rpartition("/")[0] in ("", *SHOWN)}
            facts[f"accuracy, {kind}"] = round(float(joined(parts)["right"].mean()), 4)
        facts |= {f"best {method} of the half that chooses": _best(rows, method) for method in ("nrm", "lrp")}
        return Outcome(rows, facts, {"sc_k": curves_figure(curves), **_figures(found, chosen)})

    return units, finish


def _best(rows: list[TableRow], method: str) -> str:
    """The rule under which a method has the highest mean over all cases, by the half that chooses."""
    found: dict[str, float] = {}
    for row in rows:
        if (row["method"], row["half"]) == (method, HALVES[0]) and row["pearson_mean"] is not None:
            found[row["rules"]] = found.get(row["rules"], 0.0) + row["pearson_mean"]
    return max(found, key=lambda rule: found[rule]) if found else "none"


def _figures(found: GraphSubject, chosen: list[int]) -> dict[str, Any]:
    """The points of the first graph, and some graphs with what the subgraphs around every node have in the mean."""
    shown = [i for i in chosen if found.graphs[i].label == 1][:3] or chosen[:3]
    points: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}
    figure, axes = panels(2, len(shown), 3.8, 3.2)
    for column, i in enumerate(shown):
        graph = found.graphs[i]
        subgraphs = _subgraphs(graph, SIZES[-1])
        C, own, _ = tables(found.network("GIN", found.parts[i]), graph, subgraphs)
        points = points or {"one graph": (C, {k: v for k, v in own.items() if k in SHOWN and k != "random"})}
        names = [found.labels[kind] for kind in graph.x.argmax(1).tolist()]
        both = {"relevance": own["nrm (z+, head lrp-0)"][0], "joint contribution": C[0]}
        for ax, (title, table) in zip(axes[:, column], both.items(), strict=True):
            nodes = _around(table, subgraphs, len(graph.x))
            draw(graph, nodes=nodes, labels=names, ax=ax, title=title, colorbar=False)
    return {"graphs": figure, "scatter": correlation_figure(points)}


def _around(table: Tensor, subgraphs: list[list[int]], count: int) -> Tensor:
    """For every node the mean over the subgraphs that it belongs to."""
    inside = torch.zeros(len(subgraphs), count, dtype=table.dtype)
    for row, nodes in zip(inside, subgraphs, strict=True):
        row[nodes] = 1.0
    return table @ inside / inside.sum(0).clamp(min=1.0)


GNN = Experiment(
    "gnn", "Subgraphs in graph networks", "beyond the paper's figures; its section on graph networks", _plan
)  # fmt: skip

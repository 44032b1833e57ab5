"""PyTorch Geometric: its convolutions, aggregations, poolings, norms and models, on a small graph."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from nrm.extras import extra
from nrm.testing.census.judge import enliven
from nrm.testing.census.subject import Cases, CensusCase, NotMadeError, Subject

OF = "torch_geometric"
NODES, WIDTH, EDGE = 8, 8, 3
SKIPPED = {"MessagePassing", "Aggregation", "HeteroConv", "HeteroJumpingKnowledge"}
"""Classes that others are made from, and those that only have others inside."""


def _mlp(inputs: int = WIDTH, outputs: int = WIDTH) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs))


def _arguments(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What constructors of this library ask for, by name; those of single classes come last."""
    from torch_geometric import nn as pyg

    degrees = torch.tensor([0, 0, 2, 4, 2])
    known: dict[str, Any] = {
        "in_channels": WIDTH, "out_channels": WIDTH, "hidden_channels": WIDTH, "channels": WIDTH, "K": 3, "alpha": 0.2,
        "num_layers": 2, "nn": _mlp(), "num_relations": 2, "dim": EDGE, "kernel_size": 2, "k": 3, "heads": 2,
        "space_dimensions": 2, "propagate_dimensions": 4, "aggregators": ["mean", "max", "std"],
        "scalers": ["identity", "amplification"], "deg": degrees, "filter_size": 2, "edge_dim": EDGE,
        "mlp_h": _mlp(WIDTH, 3), "mlp_f": _mlp(WIDTH + 3), "mlp_g": _mlp(), "conv": pyg.GCNConv(WIDTH, WIDTH),
        "processing_steps": 2, "aggr": "mean", "aggrs": ["mean", "max"], "scaler": ["identity", "amplification"],
        "gate_nn": _mlp(WIDTH, 1), "max_num_elements": NODES, "patch_size": 2, "mode": "cat", "num_timesteps": 2,
        "num_nodes": NODES, "depth": 2, "encoder": pyg.GCNConv(WIDTH, WIDTH), "num_classes": 3, "q": 0.3,
        "num_node_types": 2, "num_edge_types": 2, "edge_type_emb_dim": 4, "edge_attr_emb_dim": 4, "first_aggr": True,
        "discriminator": _mlp(), "embedding_dim": WIDTH, "num_blocks": 1, "num_bilinear": 4, "num_spherical": 3,
        "num_radial": 3, "int_emb_size": 8, "basis_emb_size": 4, "out_emb_channels": 8, "hidden_node_channels": WIDTH,
        "hidden_edge_channels": WIDTH, "ratio": 0.5, "metadata": (["a"], [("a", "to", "a")]), "groups": 2,
    }  # fmt: skip
    single: dict[str, dict[str, Any]] = {
        "EdgeConv": {"nn": _mlp(2 * WIDTH)}, "DynamicEdgeConv": {"nn": _mlp(2 * WIDTH)},
        "NNConv": {"nn": _mlp(EDGE, WIDTH * WIDTH)}, "GINEConv": {"edge_dim": EDGE}, "CGConv": {"dim": EDGE},
        "GroupAddRev": {"conv": pyg.GCNConv(WIDTH // 2, WIDTH // 2), "num_groups": 2}, "GENConv": {"edge_dim": EDGE},
        "PointNetConv": {"local_nn": _mlp(WIDTH + 3)}, "PPFConv": {"local_nn": _mlp(WIDTH + 4)},
        "MLP": {"channel_list": [WIDTH, WIDTH, 3], "in_channels": None},
        "DeepSetsAggregation": {"local_nn": _mlp(), "global_nn": _mlp()},
        "PNA": {"aggregators": ["mean", "max"], "scalers": ["identity"], "deg": degrees, "in_channels": WIDTH,
                "hidden_channels": WIDTH, "num_layers": 2},
        "MeshCNNConv": {}, "MemPooling": {"heads": 2, "num_clusters": 3}, "XConv": {"dim": 3, "kernel_size": 3},
        "DeepGCNLayer": {"conv": pyg.GCNConv(WIDTH, WIDTH), "norm": nn.LayerNorm(WIDTH), "act": nn.ReLU()},
        "GATConv": {"edge_dim": EDGE}, "GATv2Conv": {"edge_dim": EDGE}, "TransformerConv": {"edge_dim": EDGE},
        "HypergraphConv": {}, "SSGConv": {}, "JumpingKnowledge": {
            "mode": "lstm", "channels": WIDTH, "num_layers": 2},
        "ResGatedGraphConv": {"edge_dim": EDGE}, "GeneralConv": {"in_edge_channels": EDGE},
        "ViSNet": {"hidden_channels": 16}, "RGATConv": {"edge_dim": EDGE, "dim": 1}, "MLPAggregation": {
            "num_layers": 2, "hidden_channels": WIDTH}, "EquilibriumAggregation": {"num_layers": [WIDTH]},
        "DegreeScalerAggregation": {"aggr": ["mean", "max"]}, "HeteroBatchNorm": {"num_types": 2},
        "HeteroLayerNorm": {"num_types": 2}, "DeepGraphInfomax": {"summary": _summed, "corruption": _corrupted},
    }  # fmt: skip
    return known, single.get(kind, {})


def _summed(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.mean(0)


def _corrupted(x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    return x.flip(0), edge_index


def cases() -> Cases:
    """One case for every class."""
    with extra("graph", "nrm.testing.census"):
        from torch_geometric import nn as pyg
    groups = (pyg.conv, pyg.aggr, pyg.models, pyg.pool, pyg.norm)
    names = [name for group in groups for name in group.__all__ if isinstance(getattr(pyg, name, None), type)]
    kinds = {name: getattr(pyg, name) for name in names if issubclass(getattr(pyg, name), nn.Module)}
    return [CensusCase(OF, name, lambda name=name, kind=kind: _made(name, kind))  # type: ignore[misc]
            for name, kind in kinds.items() if name not in SKIPPED]  # fmt: skip


class OnGraph(nn.Module):
    """A class of the library behind a linear layer, called with what it takes of a graph."""

    def __init__(self, layer: nn.Module, made: dict[str, Any], first: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH) if first else nn.Identity()
        self.layer, self.made = layer, made

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """One row of numbers for the whole graph."""
        h = self.first(x)
        made = {**self.made, **({"edge_index": edge_index} if "edge_index" in self.made else {})}
        names = {
            "x": h,
            "x_0": h,
            "z": h,
            "x_dict": {"a": h},
            "xs": [h, h.relu()],
            "y_soft": h,
            "y": h,
            "msg": h.relu(),
        }
        given = {name: names.get(name, value) for name, value in made.items()}
        found = self.layer(**given) if given else self.layer(h, edge_index)
        while isinstance(found, list | tuple | dict):
            found = next(iter(found.values() if isinstance(found, dict) else found))
        result: Tensor = found
        return result.reshape(1, -1)


class OnPositions(nn.Module):
    """A model of atoms, called with their places."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, pos: Tensor) -> Tensor:
        """What it says of the molecule."""
        kinds = torch.tensor([6, 1, 1, 8, 6, 7, 1, 1])
        found = self.layer(z=kinds, pos=pos, batch=torch.zeros(NODES, dtype=torch.long))
        result: Tensor = found[0] if isinstance(found, tuple) else found
        return result.reshape(1, -1)


def _made(name: str, kind: type[nn.Module]) -> Subject:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    known, single = _arguments(name)
    known |= single
    parameters = inspect.signature(kind.__init__).parameters
    own = {
        k: v for k, v in known.items() if k in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    }
    asked = [
        p.name for p in parameters.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    wanted = {n: own[n] for n in asked if n != "self" and n in own}
    layer = _built(kind, wanted, {**_single(name, known, parameters), **single})
    takes = list(inspect.signature(layer.forward).parameters)
    if {"z", "pos"} <= set(takes):
        one, other = (torch.randn(NODES, 3, generator=generator) for _ in range(2))
        return _checked(Subject(enliven(OnPositions(layer)), one, other, batch_dim=None))
    made = _inputs(takes, generator)
    one, other = (torch.randn(NODES, WIDTH, generator=generator) for _ in range(2))
    model = enliven(OnGraph(layer, made, first=True))
    return _checked(Subject(model, (one, _edges()), (other, _edges()), batch_dim=None))


def _single(name: str, known: dict[str, Any], parameters: Any) -> dict[str, Any]:
    """Arguments that have defaults but are better given."""
    better = ("edge_dim", "in_edge_channels", "local_nn", "channel_list", "norm", "act", "dim", "num_groups", "conv",
              "global_nn", "heads" if name == "MemPooling" else "", "num_clusters", "in_channels",
              "channels")  # fmt: skip
    return {k: known[k] for k in better if k in known and k in parameters}


def _built(kind: type[nn.Module], wanted: dict[str, Any], better: dict[str, Any]) -> nn.Module:
    """The layer with arguments that are better given, or without."""
    try:
        return kind(**{**wanted, **better})
    except (TypeError, AssertionError, ValueError):
        return kind(**wanted)


def _edges() -> Tensor:
    pairs = [(i, (i + 1) % NODES) for i in range(NODES)] + [(0, 2), (1, 5)]
    return torch.tensor(pairs + [(b, a) for a, b in pairs]).T


def _inputs(takes: list[str], generator: torch.Generator) -> dict[str, Any]:
    """What a forward takes, by its names; the graph itself is filled in by the model."""
    edges = _edges()
    count = edges.shape[1]
    batch = torch.zeros(NODES, dtype=torch.long)
    known: dict[str, Any] = {
        "x": None, "edge_index": edges, "x_0": None, "index": batch, "pos": torch.randn(NODES, 3, generator=generator),
        "normal": torch.randn(NODES, 3, generator=generator), "edge_type": torch.arange(count) % 2,
        "edge_attr": torch.rand(count, EDGE, generator=generator), "pos_edge_index": edges[:, ::2],
        "neg_edge_index": edges[:, 1::2], "hyperedge_index": edges, "x_dict": None, "batch": batch, "xs": None,
        "edge_index_dict": {("a", "to", "a"): edges}, "node_type": torch.arange(NODES) % 2, "y_soft": None,
        "mask": torch.arange(NODES) % 2 == 0, "y": None, "z": None, "msg": None, "type_vec": torch.arange(NODES) % 2,
    }  # fmt: skip
    return {name: known[name] for name in takes if name in known}


def _checked(subject: Subject) -> Subject:
    """The subject, if it runs."""
    given = subject.inputs if isinstance(subject.inputs, tuple) else (subject.inputs,)
    with torch.no_grad():
        found = subject.model(*given)
    if not found.is_floating_point() or not bool(torch.isfinite(found).all()):
        raise NotMadeError("no finite numbers come out")
    return subject

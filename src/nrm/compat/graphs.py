"""Explanations of graph networks with PyTorch Geometric's call."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nrm.compat.options import read_options
from nrm.errors import QuestionError
from nrm.extras import extra
from nrm.measure import Measure, measure
from nrm.questions import Layer, Partition

NODE_MASKS = ("attributes", "object", "common_attributes", None)
EDGE_MASKS = ("object", None)
ColumnChange = Callable[[Tensor], Tensor]


def geometric(**options: Any) -> Any:
    """An algorithm for ``torch_geometric.explain.Explainer``: node and edge masks in units of the output.

    ``Explainer(model, algorithm=nrm.compat.geometric(rules="lrp-0"), ...)``; the keywords are options of
    :func:`nrm.measure`. A node mask has the relevance of the nodes' features, of all features of a node (``"object"``)
    or of a feature in all nodes (``"common_attributes"``). An edge mask has the relevance of the walks along an edge,
    the mean over the layers that pass messages. Explained is the output of the target's class; of a binary classifier
    that says no, its output with the other sign. Masks of several graphs, nodes or edges are added.

    For tasks of graphs, nodes and edges (links: one row of the output for each), and for graphs with several kinds of
    nodes, whose masks are dictionaries by kind of nodes and of edges (``HeteroConv``, ``to_hetero``).
    """
    if "output" in options:
        raise QuestionError("unknown option 'output'", expected="the output that the explainer's model config names")
    return _algorithm()(read_options(options))


@functools.cache
def _algorithm() -> type:
    """The class, made when its base class can be imported."""
    with extra("graph", "nrm.compat.geometric"):
        from torch_geometric.explain import Explanation, HeteroExplanation
        from torch_geometric.explain.algorithm import ExplainerAlgorithm
        from torch_geometric.nn import MessagePassing

    def make(self: Any, options: Mapping[str, Any]) -> None:
        ExplainerAlgorithm.__init__(self)
        self.options = options

    def forward(
        self: Any, model: nn.Module, x: Any, edge_index: Any, *, target: Tensor, index: Any = None, **more: Any
    ) -> Any:
        call, several = _bind(model, x, edge_index, more), isinstance(x, Mapping)
        passing = [name for name, module in model.named_modules() if isinstance(module, MessagePassing)]
        kinds, config = self.explainer_config, self.model_config
        name = f"input.{next(iter(call))}"
        features = {kind: f"{name}.{kind}" for kind in x} if several else {"": name}
        layers = (
            {edges: [n for n in passing if _is_about(n, edges)] for edges in edge_index} if several else {"": passing}
        )
        masks = _Masks(_value(kinds.node_mask_type), _value(kinds.edge_mask_type), features, layers)
        rows = list(range(len(target))) if index is None else torch.as_tensor(index).flatten().tolist()
        mode = _value(config.mode)
        classes, signs = _classes(mode, target)
        columns = functools.partial(_columns, single=None if mode == "multiclass_classification" else mode)
        explain = _explain_graphs if _value(config.task_level) == "graph" else _explain_nodes
        for R, chosen, samples in explain(model, call, columns, classes, rows, self.options):
            masks.add(R, signs.to(R.value)[chosen], samples)
        if not several:
            return Explanation(node_mask=masks.nodes.get(""), edge_mask=masks.edges.get(""))
        explanation = HeteroExplanation()
        for attribute, found in (("node_mask", masks.nodes), ("edge_mask", masks.edges)):
            if found:
                explanation.set_value_dict(attribute, found)
        return explanation

    def supports(self: Any) -> bool:
        config, model = self.explainer_config, self.model_config
        settings = {
            "node_mask_type": (config.node_mask_type, NODE_MASKS),
            "edge_mask_type": (config.edge_mask_type, EDGE_MASKS),
            "task_level": (model.task_level, ("graph", "node", "edge")),
            "return_type": (model.return_type, ("raw",)),
        }
        wrong = {name: pair for name, pair in settings.items() if _value(pair[0]) not in pair[1]}
        for name, (got, expected) in wrong.items():  # the explainer raises, and says nothing of why
            logging.error("nrm.compat.geometric: %s=%r, expected one of %r", name, _value(got), expected)
        return not wrong

    return type("WalkRelevance", (ExplainerAlgorithm,), {"__init__": make, "forward": forward, "supports": supports})


class _Masks:
    """The masks of an explanation, added up over what is explained: one per kind of nodes, and of edges."""

    def __init__(
        self, node_kind: str | None, edge_kind: str | None, x: Mapping[str, str], layers: Mapping[Any, Sequence[str]]
    ) -> None:  # fmt: skip
        self._node_kind, self._edge_kind, self._x, self._layers = node_kind, edge_kind, x, layers
        self.nodes: dict[str, Tensor] = {}
        self.edges: dict[Any, Tensor] = {}

    def add(self, R: Measure, signs: Tensor, samples: Sequence[int]) -> None:
        """What these samples of a measure add, each with a sign."""

        def total(part: Layer | Partition) -> Tensor:
            found: Tensor = torch.tensordot(signs, R.in_units(part)[list(samples)], 1)
            return found

        for kind, name in self._x.items() if self._node_kind is not None else ():
            x = R[name]
            parts = {"object": (x.positions, 1), "common_attributes": (x.channels, 0)}
            part, axis = parts.get(str(self._node_kind), (x, None))
            mask = total(part) if axis is None else total(part).unsqueeze(axis)
            self.nodes[kind] = self.nodes[kind] + mask if kind in self.nodes else mask
        for edges, layers in self._layers.items() if self._edge_kind is not None else ():
            found = torch.stack([total(layer.edges) for layer in _steps(R, edges, layers)]).mean(0)
            self.edges[edges] = self.edges[edges] + found if edges in self.edges else found


def _steps(R: Measure, edges: Any, names: Sequence[str]) -> list[Layer]:
    """Every call of the layers that pass messages along edges of a kind."""
    found: list[Layer] = []
    for name in names:
        with contextlib.suppress(QuestionError):  # a layer that this call does not use
            found += R.find(name)
    if not found:
        raise QuestionError(
            f"no layer passes messages along edges{f' {edges}' if edges else ''}",
            expected="modules of torch_geometric.nn.MessagePassing"
            + (", one for each kind of edges, as in HeteroConv and to_hetero" if edges else ""),
            hint="edge_mask_type=None; R(R['layer'].edges) for layers of your own",
        )  # fmt: skip
    return found


def _explain_graphs(
    model: nn.Module, call: dict[str, Any], columns: ColumnChange, classes: list[int], rows: list[int],
    options: Mapping[str, Any],
) -> Iterator[tuple[Measure, list[int], list[int]]]:  # fmt: skip
    """The measure of all graphs of a batch, which of them are asked for, and which of its samples they are."""
    yield measure(model, call, output=columns, target=classes, **options), rows, rows


def _explain_nodes(
    model: nn.Module, call: dict[str, Any], columns: ColumnChange, classes: list[int], rows: list[int],
    options: Mapping[str, Any],
) -> Iterator[tuple[Measure, list[int], list[int]]]:  # fmt: skip
    """The measures of single rows of the output, of nodes or of edges, each the only sample of its own."""
    for row in rows:
        column = classes[row]
        yield measure(model, call, output=lambda o, c=column: columns(o)[:, c], target=row, **options), [row], [0]


def _columns(output: Tensor, single: str | None) -> Tensor:
    """Outputs with one row per graph, node or edge; a single column for a mode that knows no classes."""
    rows = output if output.ndim == 2 else output.reshape(len(output), -1)
    if single is not None and rows.shape[1] != 1:
        raise QuestionError(
            f"{single} is about one output", got=f"{rows.shape[1]} outputs", expected="a model with one",
            hint="mode='multiclass_classification' with a target explains one of several",
        )  # fmt: skip
    return rows


def _classes(mode: str, target: Tensor) -> tuple[list[int], Tensor]:
    """The column of the output that is explained, per row, and its sign."""
    if mode == "multiclass_classification":
        return [int(c) for c in target.flatten()], torch.ones(len(target))
    yes = target.flatten() > 0 if mode == "binary_classification" else torch.ones(len(target), dtype=torch.bool)
    return [0] * len(target), torch.where(yes, 1.0, -1.0)


def _bind(model: nn.Module, x: Any, edge_index: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the model by name; the first one is the nodes' features."""
    if isinstance(x, Mapping) != isinstance(edge_index, Mapping):
        raise QuestionError(
            "features and edges do not belong to one kind of graph", got=f"x is a {type(x).__name__}",
            expected="two tensors, or two dictionaries by kind",
        )  # fmt: skip
    parameters = list(inspect.signature(model.forward).parameters.values())
    named = [p.name for p in parameters[:2] if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(named) < 2:
        raise QuestionError(
            "the model's arguments have no names", got=f"forward{inspect.signature(model.forward)}",
            expected="forward(x, edge_index, ...)",
        )  # fmt: skip
    given = dict(zip(named, (x, edge_index), strict=True)) | dict(more)
    return {name: value for name, value in given.items() if value is not None}


def _is_about(name: str, edges: Sequence[str]) -> bool:
    """Whether a module is for one kind of edges: ``convs.<a___to___b>`` in a HeteroConv, else ``conv.a__to__b``."""
    own = name.rpartition(".")[2]
    return own.strip("<>") in ("___".join(edges), "__".join(edges))


def _value(kind: Any) -> Any:
    return None if kind is None else kind.value

"""Methods that ask one question to the measure of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from nrm.errors import QuestionError
from nrm.measure import Average, Measure
from nrm.questions import Argument, Formula, Layer, Partition, Set, query


def lrp(R: Measure, part: Argument | None = None) -> Tensor:
    """Standard LRP: the relevance of every input neuron, or of a set of them, for the explained output.

    Asks ``R(R.input)``, or ``R(part)`` for a part of the input: the paper's rows *standard LRP* (every input neuron
    together with the output neuron) and *standard LRP for an input neuron set*.

    >>> import nrm, torch
    >>> R = nrm.measure(torch.nn.Linear(4, 2), torch.ones(1, 4))
    >>> bool((lrp(R) == R(R.input)).all()), lrp(R, R.input[:2]).shape
    (True, torch.Size([1]))
    """
    return R(R.input if part is None else part)


def deeplift(R: Measure | Average, part: Argument | None = None) -> Tensor:
    """DeepLIFT: what every input contributes to the difference of the output from that of the reference.

    Asks ``R.in_units(R.input)``, or of a part of the input, to a measure ``against`` a reference; against a list of
    them it is their mean (DeepSHAP). It sums to that difference, in units of the output.

    >>> import nrm, torch
    >>> R = nrm.measure(torch.nn.Linear(4, 2), torch.ones(1, 4), target=0, against="zeros")
    >>> bool(torch.allclose(deeplift(R).sum(1), R.value))
    True
    """
    first = R.contrasts[0] if isinstance(R, Average) else R
    if first.inner.target.runs is None:
        raise QuestionError(
            "DeepLIFT needs a reference", got="a measure of one output", expected="a measure of a difference",
            hint="nrm.measure(model, x, against=reference)",
        )  # fmt: skip
    return R.in_units(R.input if part is None else part)


def conrel(R: Measure, concept: Argument) -> Tensor:
    """Concept relevance (ConRel): the relevance of neurons inside the network for the explained output.

    Asks ``R(concept)``: the paper's rows *ConRel* (a layer: one neuron at a time) and *ConRel for a concept neuron set*
    (a set, such as a channel; a partition, such as all channels).

    >>> import nrm, torch
    >>> _ = torch.manual_seed(0)
    >>> R = nrm.measure(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)), torch.ones(1, 4))
    >>> conrel(R, R["0"]).shape, conrel(R, R["0"].channel([1, 2])).shape
    (torch.Size([1, 8]), torch.Size([1]))
    """
    return R(concept)


def crp(R: Measure, *concepts: Argument, at: Argument | None = None) -> Tensor:
    """Concept relevance propagation (CRP): the heat map of what flows through concepts.

    Asks ``R(*concepts, R.input)``, or ``R(*concepts, at)`` for a part of the input: the paper's rows *CRP* and *CRP for
    input and concept neuron sets*. One concept is ``a.channel(3)``, several as one ``a.channel([3, 7])``, several with
    a heat map each ``a.channels[[3, 7]]``, one in every layer ``a.channel(3), b.channel(5)``. Colours are summed with
    ``at=R.input.positions``.

    >>> import nrm, torch
    >>> _ = torch.manual_seed(0)
    >>> R = nrm.measure(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)), torch.ones(1, 4))
    >>> crp(R, R["0"].channel(3)).shape, crp(R, R["0"].channels[[3, 7]]).shape
    (torch.Size([1, 4]), torch.Size([1, 2, 4]))
    """
    if not concepts:
        raise QuestionError(
            "CRP needs a concept", got="none", expected="sets or partitions of layers",
            hint="crp(R, R['features.28'].channel(50)); lrp(R) is the heat map without any",
        )  # fmt: skip
    return R(*concepts, R.input if at is None else at)


def gnn_lrp(R: Measure, layers: Sequence[Layer | str], walk: Sequence[int] | None = None) -> Tensor:
    """GNN-LRP: the relevance of a walk over the nodes of a graph (or the tokens of a text), one node per layer.

    Asks ``R(layers[0].position(walk[0]), layers[1].position(walk[1]), ...)``; without a walk, for all of them at once,
    ``R(layers[0].positions, layers[1].positions, ...)``, with an axis per layer. It is the paper's row *subgraph LRP*
    for sets of a single node, a different one in every layer.
    """
    here = _layers(R, layers)
    if walk is None:
        return R(*(layer.positions for layer in here))
    if len(walk) != len(here):
        raise QuestionError(
            "a walk has one node per layer", got=f"{walk!r}"[:80], expected=f"{len(here)} nodes for {len(here)} layers",
            hint="subgraph(R, layers, nodes) takes a set of nodes for all layers",
        )  # fmt: skip
    return R(*(layer.position(node) for layer, node in zip(here, walk, strict=True)))


def subgraph(R: Measure, layers: Sequence[Layer | str], nodes: Any) -> Tensor:
    """Subgraph LRP: the relevance of all walks that stay among these nodes in every one of the layers.

    Asks ``R(layers[0].position(nodes), layers[1].position(nodes), ...)``: the paper's row *subgraph LRP*, which is
    given the output neuron. Nodes are the positions of a layer: nodes of a graph, tokens of a text, places of an image;
    a number, a list of them, or one list per sample.

    >>> import nrm, torch
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3, padding=1), torch.nn.Conv1d(3, 2, 3, padding=1),
    ...                             torch.nn.Flatten(), torch.nn.Linear(10, 2))
    >>> R = nrm.measure(model, torch.rand(1, 2, 5))
    >>> stays = subgraph(R, ["input", "0", "1"], [1, 2, 3])
    >>> stays.shape, bool(torch.isclose(stays, gnn_lrp(R, ["input", "0", "1"])[:, 1:4, 1:4, 1:4].sum()))
    (torch.Size([1]), True)
    """
    return R(*_through(R, layers, nodes))


def symbxai(
    R: Measure, formula: Formula | str, /, layers: Sequence[Layer | str] | None = None, *, at: Argument | None = None,
    given: Argument | Sequence[Argument] | None = None, **features: Any,
) -> Tensor:  # fmt: skip
    """SymbXAI: the relevance of all walks for which a formula about features holds.

    A walk has a feature if it visits one of its nodes in any of the layers; ``NOT`` is never to visit them. Asks
    ``R(formula)``, or ``R(formula, at)`` for its heat map: the paper's rows *SymbXAI for a set* (``"S"``), *for S1 and
    S2*, *for not S*, and any other formula, such as ``"S1 OR S2"``. Written as text, it has keywords for its features:
    nodes (positions) of ``layers``, or sets; else it is made of ``nrm.visits(...)``. ``given`` makes it conditional, as
    in ``R(...)``.

    >>> import nrm, torch
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 3, padding=1), torch.nn.Conv1d(3, 2, 3, padding=1),
    ...                             torch.nn.Flatten(), torch.nn.Linear(10, 2))
    >>> R = nrm.measure(model, torch.rand(1, 2, 5), bias="ignore")  # no walk begins in the middle
    >>> layers = ["input", "0", "1"]
    >>> neither = symbxai(R, "NOT (first OR last)", layers, first=[0], last=[4])
    >>> bool(torch.isclose(neither, subgraph(R, layers, [1, 2, 3])))
    True
    >>> symbxai(R, "first AND last", layers, first=[0, 1], last=[4], at=R.input).shape
    torch.Size([1, 2, 5])
    """
    if isinstance(formula, str):
        sets = features if layers is None else {name: _through(R, layers, nodes) for name, nodes in features.items()}
        formula = query(formula, sets)
    elif features or layers is not None:
        raise QuestionError(
            "layers and features are for formulas as text", got=f"{type(formula).__name__} and {', '.join(features)}",
            expected="a text", hint="symbxai(R, 'first AND NOT last', layers, first=[0], last=[4])",
        )  # fmt: skip
    return R(*(formula,) if at is None else (formula, at), given=given)


def additive(
    R: Measure, *parts: Layer | Partition | Set, at: Argument | None = None, layers: Sequence[Any] | None = None
) -> Tensor:
    """Additive relevance: every walk is shared out evenly over its layers, and neurons collect their shares.

    Asks ``R.additive(*parts)``; with ``at=R.input`` for its heat map, with ``layers`` over chosen cuts. This is the
    paper's second definition of the relevance of a set of neurons, beside the joint relevance of all other methods.

    >>> import nrm, torch
    >>> _ = torch.manual_seed(0)
    >>> R = nrm.measure(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)), torch.ones(1, 4))
    >>> additive(R, R["0"].channel(3), R.input[:2]).shape
    torch.Size([1])
    """
    return R.additive(*parts, at=at, layers=layers)


def _through(R: Measure, layers: Sequence[Layer | str], nodes: Any) -> list[Set]:
    """Passing through some positions in several layers."""
    return [layer.position(nodes) for layer in _layers(R, layers)]


def _layers(R: Measure, layers: Sequence[Layer | str]) -> list[Layer]:
    if not isinstance(layers, list | tuple) or not layers:
        raise QuestionError(
            "layers are a list", got=repr(layers)[:120], expected="layers or their names", hint="['conv1', 'conv2']"
        )
    return [R[layer] for layer in layers]

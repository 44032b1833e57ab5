"""The network between chosen layers: a tape of these layers only, with one step from each to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nrm.capture import Combine, Linear, Node, Segment, Tape, Term, plain_execution, reads
from nrm.errors import QuestionError, RuleError
from nrm.memory import refuse_larger
from nrm.operators import Ends, LinearMap
from nrm.rules.between import Between, BlockStep


def coarse_tape(tape: Tape, rule: Between, memory: int) -> Tape:
    """The tape of the rule's layers; ``tape`` has kept its calls."""
    names = _chain(tape, rule)
    ends = list(names)
    steps = list(zip([tape.inputs, *((i,) for i in ends)], ends, strict=False))
    baselines = _baselines(tape, rule, [i for starts, _ in steps for i in starts])
    if rule.materialises:
        _refuse_large(tape, steps, rule, memory)
    builder = _Builder(tape, names)
    for i in tape.inputs:
        builder.add(tape.nodes[i])
    with plain_execution():
        for starts, end in steps:
            builder.join(rule, starts, tape.nodes[end], tuple(baselines[i] for i in starts))
    return builder.tape(ends[-1], None if rule.materialises else tape)


class _Builder:
    """A tape in the making."""

    def __init__(self, tape: Tape, labels: Mapping[int, str]) -> None:
        self._tape = tape
        self._labels = labels
        self._nodes: list[Node] = []
        self._place: dict[int, int] = {}

    def add(self, node: Node, **changes: Any) -> int:
        """A node of the captured tape, or one like it, at the end of the new one."""
        index = len(self._nodes)
        if "name" not in changes:
            self._place[node.index] = index
            changes["name"] = self._labels.get(node.index, node.name)
        self._nodes.append(replace(node, index=index, recall=None, **changes))
        return index

    def join(self, rule: Between, starts: Sequence[int], end: Node, baselines: tuple[Tensor, ...]) -> None:
        """The step from some tensors to the next one. What its entries do not add up to is its bias."""
        nodes = [self._tape.nodes[i] for i in starts]
        function = Segment(self._tape, starts, end.index)
        step = BlockStep(function, function.values, baselines, _ends(nodes, end))
        try:
            maps = rule.maps(step)
            sums = [_column_sums(map, end.value) for map in maps]
        except RuleError as error:
            raise error.at(f"the block that ends at {end.name!r}") from None
        rest = end.value - sum(sums[1:], sums[0])
        if len(maps) == 1:
            self.add(end, op=Linear(maps[0], "block", rest), inputs=(self._place[starts[0]],))
            return
        inputs = tuple(
            self.add(end, op=Linear(map, "block"), inputs=(self._place[node.index],), value=part,
                     name=f"{end.name}<-{node.name}")
            for node, map, part in zip(nodes, maps, sums, strict=True)
        )  # fmt: skip
        terms = tuple(Term() for _ in inputs)
        self.add(end, op=Combine(terms, rest, joins=True, kind="add"), inputs=inputs)

    def tape(self, output: int, behind: Tape | None) -> Tape:
        """The finished tape; ``behind`` is read by its steps."""
        old = self._tape
        return Tape(
            self._nodes, self._named(old.names), self._named(old.received), old.modules,
            tuple(self._place[i] for i in old.inputs), self._place[output], old.batch, old.dtype, old.notes,
            ends=old.ends, behind=behind, forward=old.forward, doubts=old.doubts,
        )  # fmt: skip

    def _named(self, names: Mapping[str, list[int]]) -> dict[str, list[int]]:
        """The names of the layers that are left; calls of a module keep their numbers."""
        found: dict[str, list[int]] = {}
        for name, calls in names.items():
            left = {k: self._place[index] for k, index in enumerate(calls) if index in self._place}
            if len(left) == len(calls):
                found[name] = list(left.values())
            else:
                found |= {f"{name}#{k}": [place] for k, place in left.items()}
        return found


def _column_sums(map: LinearMap, like: Tensor) -> Tensor:
    """The sums of a map's columns, which must be finite; and what the map pulls must agree with what it pushes."""
    sums = map.apply(torch.ones((1, *map.inside), dtype=like.dtype, device=like.device))[0]
    if not bool(torch.isfinite(sums).all()):
        raise RuleError(
            "the entries of a block are not finite",
            got="a function without a derivative, or undefined at the baseline", hint="another baseline or layers",
        )  # fmt: skip
    probe = torch.rand(like.shape, generator=torch.Generator().manual_seed(0)).to(like)
    down = map.transpose(probe[None])[0]
    slack = 1e4 * torch.finfo(like.dtype).eps * (float((sums * probe).abs().sum()) + float(down.abs().sum()))
    if not abs(float((sums * probe).sum()) - float(down.sum())) <= slack:
        raise RuleError(
            "a block cannot be differentiated", got="derivatives that are not the same in both directions",
            hint="nrm.Occlusion or nrm.Shapley need no derivatives",
        )  # fmt: skip
    return sums


def _ends(starts: Sequence[Node], end: Node) -> tuple[Ends, ...]:
    """Samples are told apart by axes if every tensor has one."""
    apart = end.sample is not None and all(node.sample is not None for node in starts)
    axes = [(node.sample, end.sample) if apart else (None, None) for node in starts]
    return tuple(Ends(node.shape, end.shape, *pair) for node, pair in zip(starts, axes, strict=True))


# ---- which layers ------------------------------------------------------------------------------------------------


def _chain(tape: Tape, rule: Between) -> dict[int, str]:
    """The chosen layers by their names, in the order of the forward pass, the output last; each is passed by all."""
    if rule.layers is None:
        chosen = {i: name for i, name in _top_level(tape).items() if _bypass(tape, i) is None}
    else:
        chosen = {}
        for name in rule.layers:
            try:
                chosen.setdefault(tape.inputs[0] if name == "input" else tape.find(name).index, name)
            except QuestionError as error:
                raise error.at(f"layers of {type(rule).__name__}") from None
    for i, name in chosen.items():
        way = None if i in tape.inputs else _bypass(tape, i)
        if way is not None:
            raise RuleError(
                f"not everything passes layer {name!r}", where=f"layers of {type(rule).__name__}",
                got=f"a way past it: from {way[0].name!r} to {way[1].name!r}",
                expected="layers that every way from the input to the output passes, such as whole residual blocks",
            )  # fmt: skip
    last = chosen.get(tape.output, "output")
    inner = {i: chosen[i] for i in sorted(chosen) if i not in tape.inputs and i != tape.output}
    return {**inner, tape.output: tape.nodes[tape.output].name if last == "output" else last}


def _top_level(tape: Tape) -> dict[int, str]:
    calls = {name: calls for name, calls in tape.names.items() if name in tape.modules and "." not in name}
    return {i: name if len(all_) == 1 else f"{name}#{k}" for name, all_ in calls.items() for k, i in enumerate(all_)}


def _bypass(tape: Tape, cut: int) -> tuple[Node, Node] | None:
    """A step on a way from the input to the output that avoids a node; None if there is no such way."""
    nodes = tape.nodes
    after = set(tape.inputs) - {cut}
    for node in nodes:
        if node.index != cut and any(i in after for i in reads(node)):
            after.add(node.index)
    before = {tape.output} - {cut}
    for node in reversed(nodes):
        if node.index in before:
            before.update(i for i in reads(node) if i != cut)
    if not before.intersection(tape.inputs):
        return None
    ways = [(i, node) for node in nodes if node.index in before & after for i in reads(node) if i in before & after]
    over = [(i, node) for i, node in ways if i < cut < node.index] or ways
    return (nodes[over[0][0]], over[0][1]) if over else (nodes[tape.output],) * 2


# ---- baselines and memory ----------------------------------------------------------------------------------------


def _baselines(tape: Tape, rule: Between, starts: Sequence[int]) -> dict[int, Tensor]:
    """The baseline of every layer that a step starts from, in its shape."""
    given = rule.reference
    if not isinstance(given, Mapping):
        return {i: _baseline(tape.nodes[i], given, rule) for i in starts}
    named: dict[int, float | Tensor] = {}
    for name, value in given.items():
        where = f"baseline of {type(rule).__name__}"
        if name == "input" and len(tape.inputs) > 1:
            names = [repr(tape.nodes[i].name) for i in tape.inputs]
            raise RuleError(f"the model has {len(names)} inputs", where=where, expected=", ".join(names))
        try:
            index = tape.inputs[0] if name == "input" else tape.find(name).index
        except QuestionError as error:
            raise error.at(where) from None
        if index not in starts:
            raise RuleError(
                f"a baseline for {name!r}, from which no step starts", where=repr(rule),
                expected=", ".join(repr(tape.nodes[i].name) for i in starts),
            )  # fmt: skip
        named[index] = value
    return {i: _baseline(tape.nodes[i], named.get(i, 0.0), rule) for i in starts}


def _baseline(node: Node, given: float | Tensor, rule: Between) -> Tensor:
    value = torch.as_tensor(given, dtype=node.value.dtype, device=node.value.device)
    if node.sample is not None and value.ndim == node.value.ndim - 1 and value.ndim:
        value = value.unsqueeze(node.sample)
    try:
        return value.expand(node.shape)
    except RuntimeError:
        raise RuleError(
            f"the baseline does not fit layer {node.name!r}", where=repr(rule), got=f"shape {tuple(value.shape)}",
            expected=f"a number, or a tensor that broadcasts to {node.layer_shape}",
            hint="baseline={'input': tensor} is for one layer; those left out have 0",
        ) from None  # fmt: skip


def _refuse_large(tape: Tape, steps: Sequence[tuple[Sequence[int], int]], rule: Between, memory: int) -> None:
    size = 0
    for starts, end in steps:
        for ends in _ends([tape.nodes[i] for i in starts], tape.nodes[end]):
            batch, below, above = ends.shape
            size += batch * below * above * tape.nodes[end].value.element_size()
    refuse_larger(
        f"the entries of {type(rule).__name__} are larger", size, memory,
        "nrm.Gradient and nrm.IntegratedGradients form no entries; smaller layers; or memory= in nrm.measure",
    )  # fmt: skip

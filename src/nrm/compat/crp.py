"""Conditional attributions with zennit-crp's call: condition dicts, recorded layers, results with four fields.

A condition ``{"features.28": [50], "y": [1]}`` is a question: the heat map of class 1 through channel 50 of a layer.
Relevance starts with the explained output, so that a heat map without conditions sums to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nrm.compat.options import read_options
from nrm.errors import QuestionError
from nrm.measure import Loop
from nrm.search import read_count

Condition = Mapping[str, Any]


class AttributionResult(NamedTuple):
    """One row per pair of a sample and a condition; layers by name."""

    heatmap: Tensor
    activations: dict[str, Tensor]
    relevances: dict[str, Tensor]
    prediction: Tensor


class ConditionRow(NamedTuple):
    """One explained output of one sample under one condition; several rows of a pair add up."""

    pair: int
    sample: int
    target: int
    concepts: dict[str, list[int]]


class CondAttribution:
    """Heat maps and inner relevance of samples under conditions on channels.

    ``options`` are those of :func:`nrm.measure`; ``composite`` of a call is its ``rules``.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    >>> result = CondAttribution(model)(torch.rand(1, 3, 8, 8), [{"1": [5], "y": [1]}, {"1": [2, 3], "y": [1]}])
    >>> result.heatmap.shape, result.relevances["1"].shape
    (torch.Size([2, 8, 8]), torch.Size([2, 8, 6, 6]))
    """

    MODEL_OUTPUT_NAME = "y"

    def __init__(self, model: nn.Module, **options: Any) -> None:
        self.model = model
        self._loop = Loop()
        self.options = read_options(options)

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"{type(self).__name__}({type(self.model).__name__}{options})"

    def __call__(
        self, data: Tensor, conditions: Sequence[Condition], composite: Any = None, record_layer: Sequence[str] = (), *,
        batch_size: int = 16,
    ) -> AttributionResult:  # fmt: skip
        """The result of every condition for every sample, sample by sample; pair by pair if there are equally many.

        Every condition names its outputs (``"y"``, several add up) and channels of any layers; relevance passes through
        all of them. Layers of ``record_layer`` and of the conditions are recorded: all their relevance that meets the
        condition, above it and below it. The heat map sums channels.
        """
        rows = list(self._rows(data, conditions))
        names = _names(record_layer, [row.concepts for row in rows])
        size = read_count(batch_size, "rows", "batch_size")
        options = self.options if composite is None else {**self.options, "rules": composite}
        heat, prediction = _Gathered(), _Gathered()
        relevances, activations = ({name: _Gathered() for name in names} for _ in range(2))
        for some in _together(rows, size):
            pairs = [row.pair for row in some]
            inputs = data[[row.sample for row in some]]
            with self._loop.measure(self.model, inputs, target=[row.target for row in some], **options) as R:
                events = [R[name].channel([row.concepts[name] for row in some]) for name in some[0].concepts]
                heat.add(pairs, R.in_units(*events, R.input.positions))
                prediction.put(pairs, R.values(R.output))
                for name in names:
                    relevances[name].add(pairs, R.in_units(*events, R[name]))
                    activations[name].put(pairs, R.values(R[name]))
        return AttributionResult(
            heat.all, {n: a.all for n, a in activations.items()}, {n: r.all for n, r in relevances.items()},
            prediction.all,
        )  # fmt: skip

    def _rows(self, data: Any, conditions: Any) -> Iterator[ConditionRow]:
        if not isinstance(data, Tensor) or data.ndim < 2:
            got = f"shape {tuple(data.shape)}" if isinstance(data, Tensor) else type(data).__name__
            raise QuestionError("data is a batch of inputs", got=got, expected="a tensor, samples on axis 0")
        if isinstance(conditions, Mapping) or not isinstance(conditions, Sequence) or not conditions:
            raise QuestionError(
                "conditions are a list of dicts", got=repr(conditions)[:80], hint="[{'features.28': [50], 'y': [1]}]"
            )
        read = [self._read(condition) for condition in conditions]
        if len(data) == len(read):
            pairs = list(enumerate(read))
        else:
            pairs = [(sample, one) for sample in range(len(data)) for one in read]
        for pair, (sample, (targets, concepts)) in enumerate(pairs):
            for target in targets:
                yield ConditionRow(pair, sample, target, concepts)

    def _read(self, condition: Any) -> tuple[list[int], dict[str, list[int]]]:
        if not isinstance(condition, Mapping) or self.MODEL_OUTPUT_NAME not in condition:
            raise QuestionError(
                "a condition names the explained outputs", got=repr(condition)[:80],
                expected=f"a dict with the key {self.MODEL_OUTPUT_NAME!r}", hint="{'features.28': [50], 'y': [1]}",
            )  # fmt: skip
        ids = {name: _ids(name, chosen) for name, chosen in condition.items()}
        return ids.pop(self.MODEL_OUTPUT_NAME), ids


class _Gathered:
    """Rows of results that come in any order, by the pair that they belong to."""

    def __init__(self) -> None:
        self._rows: dict[int, Tensor] = {}

    def add(self, pairs: Sequence[int], values: Tensor) -> None:
        for pair, value in zip(pairs, values, strict=True):
            self._rows[pair] = self._rows[pair] + value if pair in self._rows else value

    def put(self, pairs: Sequence[int], values: Tensor) -> None:
        self._rows.update(zip(pairs, values, strict=True))

    @property
    def all(self) -> Tensor:
        return torch.stack([self._rows[pair] for pair in sorted(self._rows)])


def _together(rows: Sequence[ConditionRow], size: int) -> Iterator[list[ConditionRow]]:
    """Rows whose conditions are on the same layers, up to so many at a time."""
    groups: dict[frozenset[str], list[ConditionRow]] = {}
    for row in rows:
        groups.setdefault(frozenset(row.concepts), []).append(row)
    for group in groups.values():
        yield from (group[i : i + size] for i in range(0, len(group), size))


def _names(record_layer: Any, concepts: Sequence[dict[str, list[int]]]) -> list[str]:
    if isinstance(record_layer, str) or not all(isinstance(name, str) for name in record_layer):
        raise QuestionError(
            "record_layer is a list of layer names", got=repr(record_layer)[:80], hint="record_layer=['features.26']"
        )
    return list(dict.fromkeys([*record_layer, *(name for one in concepts for name in one)]))


def _ids(name: str, chosen: Any) -> list[int]:
    """The channels or outputs of a condition, each once."""
    ids = chosen if isinstance(chosen, Sequence) else getattr(chosen, "tolist", lambda: chosen)()
    ids = ids if isinstance(ids, Sequence) and not isinstance(ids, str) else [ids]
    if not ids or any(isinstance(i, bool) or not hasattr(i, "__index__") for i in ids):
        raise QuestionError(
            "a condition is a list of channels", where=f"condition on {name!r}", got=repr(chosen)[:80],
            expected="one or more integers", hint=f"{{{name!r}: [50]}}",
        )  # fmt: skip
    return list(dict.fromkeys(int(i) for i in ids))

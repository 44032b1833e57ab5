"""The measure: one object that answers every question about one prediction."""

from __future__ import annotations

import contextlib
import fnmatch
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from nrm.capture import Combine, Linear, Node, Pointwise, Source, Tape, unknown_layer
from nrm.capture import capture as capture_model
from nrm.capture.capture import unwrap
from nrm.errors import NrmError, NrmWarning, PrecisionError, QuestionError
from nrm.measure.check import Check, check_measure
from nrm.measure.digest import model_digest
from nrm.measure.frame import Frame
from nrm.measure.layers import Cut, LayerTable, layer_table
from nrm.measure.memory import memory_bound
from nrm.measure.question import Answerer, stops_for
from nrm.measure.show import measure_html, measure_text
from nrm.measure.sweep import Base, Site, base_sweep
from nrm.measure.target import Target, read_target
from nrm.measure.values import Layer, Partition, Set
from nrm.rules import Network, resolve

Argument = Layer | Set | Partition
PORTS = ("bias", "offset", "sink")


def measure(
    model: nn.Module,
    inputs: Any,
    *,
    output: Any = None,
    target: Any = None,
    rules: Any = "auto",
    bias: str = "auto",
    zero: str = "sink",
    batch_dim: int | None = 0,
    dtype: torch.dtype | None = None,
    normalize: bool | str = True,
    labels: Mapping[str, Sequence[str]] | None = None,
    memory: str | int = "auto",
    progress: bool | None = None,
) -> Measure:
    """The normalized relevance measure of a model's prediction for these inputs.

    ``inputs`` is a tensor, a tuple (positional arguments), a mapping (keyword arguments) or whatever the model takes;
    ``output`` picks what is explained (a key, or a function of the model's output); ``target`` is a class, one per
    sample, a tuple of indices, a set of outputs, ``"logits"`` or ``"softmax"``, or None for each sample's top class.
    ``rules`` is a composite's name, a rule, or a mapping; ``bias`` is ``"ignore"`` or ``"input"``; ``zero`` says where
    the mass of columns without a sum goes. ``memory`` bounds what answers may allocate (bytes, or text like "2 GiB").

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> R = measure(model, torch.ones(1, 4))
    >>> float(R(R.inputs.parts[0].all) + sum(R(part.all) for part in R.inputs.parts[1:]))  # doctest: +ELLIPSIS
    1.0...
    """
    _check_options(bias, zero, normalize)
    tape = capture_model(model, inputs, output=output, batch_dim=batch_dim, dtype=dtype)
    composite = resolve(rules, tape)
    chosen_bias = composite.bias if bias == "auto" else bias
    network = Network(tape, composite, bias=chosen_bias, zero=zero, normalize=normalize)
    return Measure(
        network, target, labels=labels, memory=memory_bound(memory), progress=progress,
        digest=lambda: model_digest(unwrap(model)),
    )  # fmt: skip


def _check_options(bias: str, zero: str, normalize: bool | str) -> None:
    for name, value, known in (
        ("bias", bias, ("auto", "ignore", "input")),
        ("zero", zero, ("sink", "uniform", "error")),
        ("normalize", normalize, (True, False, "raw")),
    ):
        if value not in known:
            raise QuestionError(f"unknown option {name}={value!r}", expected=", ".join(map(repr, known)))


class Measure:
    """The relevance measure of one prediction (of every sample of a batch, each with its own).

    Called with sets and partitions of layers it gives their joint relevance, with ``given=`` the conditional one.
    """

    def __init__(
        self,
        network: Network,
        target: Any,
        *,
        labels: Mapping[str, Sequence[str]] | None,
        memory: int,
        progress: bool | None,
        digest: Any,
    ) -> None:
        self._network = network
        self._labels = dict(labels or {})
        self._memory = memory
        self._show_progress = progress
        self._digest = digest
        self._versions = _weight_versions(network.tape)
        self._base: Base | None = None
        self._light: Check | None = None
        node = self._tape.nodes[self._tape.output]
        self._target: Target = read_target(target, node.value, self._frame(node), network.normalize)

    # ---- questions -------------------------------------------------------------------------------------------

    def __call__(self, *arguments: Argument, given: Argument | Sequence[Argument] | None = None) -> Tensor:
        """The relevance of all walks that pass through everything asked for: ``(batch, *axes)``.

        Sets are fixed; layers and partitions become axes, in the order of the arguments. ``given`` divides by the
        relevance of its own events; its free variables come last.
        """
        conditions = [given] if isinstance(given, Layer | Set | Partition) else list(given or [])
        if not arguments:
            raise QuestionError("nothing was asked", hint="R(R['layer']), R(a.channel(3), b.channels), ...")
        self._check_fresh()
        self._be_loud()
        with torch.no_grad():
            table = self._ask([*arguments, *conditions])
            return self._conditioned(table, conditions) if conditions else table

    def _ask(self, arguments: Sequence[Argument], absolute: bool = False) -> Tensor:
        stops = stops_for(arguments, self._resolve)
        self._refuse_excluded(stops)
        answerer = Answerer(self._network, self.base, memory=self._memory, progress=_progress(self._show_progress))
        return answerer.table(stops, absolute)

    def _conditioned(self, joint: Tensor, conditions: Sequence[Argument]) -> Tensor:
        condition = self._ask(conditions)
        inside = self._ask(conditions, absolute=True)
        eps = torch.finfo(joint.dtype).eps
        relative = condition.abs() / torch.where(inside == 0, torch.ones_like(inside), inside)
        lost = (condition != 0) & (relative < 100 * eps)
        if bool(lost.any()):
            raise PrecisionError(
                "the condition's relevance is lost in rounding", got=f"{int(lost.sum())} conditions near 0",
                expected="a condition whose relevance does not cancel", hint="dtype=torch.float64, or a larger set",
            )  # fmt: skip
        near = (condition != 0) & (relative < 1e-3)
        if bool(near.any()):
            warnings.warn(
                f"{int(near.sum())} conditions have a relevance below 0.1 % of the total variation inside them",
                NrmWarning, stacklevel=3,
            )  # fmt: skip
        gap = joint.ndim - condition.ndim
        shaped = condition.reshape(condition.shape[0], *(1,) * gap, *condition.shape[1:])
        safe = torch.where(shaped == 0, torch.ones_like(shaped), shaped)
        return torch.where(shaped == 0, torch.zeros_like(joint), joint / safe)

    def _refuse_excluded(self, stops: Sequence[Any]) -> None:
        """Asking for an output that the target excludes would always give 0, which nobody means."""
        start = self._target.start != 0
        for stop in stops:
            if stop.site == Site(self._tape.output) and stop.sets:
                mask = stop.mask()
                if mask is not None and not bool((start & mask).any()) and bool(mask.any()):
                    raise QuestionError(
                        "the target excludes these outputs", got=repr(stop.sets[0]), expected=self._target_text(),
                        hint="nrm.measure(..., target='softmax') spreads relevance over all outputs",
                    )  # fmt: skip

    def values(self, layer: Layer) -> Tensor:
        """The activations of a layer: ``(batch, *layer shape)``."""
        site, frame = self._resolve(layer)
        if site.port:
            raise QuestionError(f"{layer!r} has no activations", expected="a tensor of the network")
        return frame.to_samples(self._tape.nodes[site.node].value[None])[0]

    def plan_bytes(self, *arguments: Argument) -> int:
        """The size of an answer in bytes, without computing it."""
        stops = stops_for(arguments, self._resolve)
        count = self._tape.batch
        for stop in stops:
            count *= stop.count
        return count * torch.finfo(self._tape.dtype).bits // 8

    # ---- places ----------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Layer:
        """The layer of this name, checked against this capture."""
        layer = name if isinstance(name, Layer) else Layer(name)
        self._resolve(layer)
        return layer

    def _ipython_key_completions_(self) -> list[str]:
        return [row.name for row in self.layers]

    def find(self, pattern: str) -> list[Layer]:
        """The layers whose name matches a pattern with ``*`` and ``?``, in the order of the forward pass."""
        found: dict[int, Layer] = {}
        for name, calls in self._tape.names.items():
            for k, index in enumerate(calls):
                full = name if len(calls) == 1 else f"{name}#{k}"
                if fnmatch.fnmatchcase(full, pattern) or fnmatch.fnmatchcase(name, pattern):
                    found.setdefault(index, Layer(full))
        if not found:
            raise unknown_layer(pattern, self._tape)
        return [found[i] for i in sorted(found)]

    @property
    def input(self) -> Layer:
        """The user's input as a layer."""
        return self["input"]

    @property
    def output(self) -> Layer:
        """The explained output as a layer."""
        return Layer("output")

    @property
    def inputs(self) -> Cut:
        """The whole input cut: the user's tensors, inputs in the middle, biases, offsets and sinks. Its mass is 1."""
        parts = [Layer(n.name) for n in self._tape.sources if n.index in self.base.arrivals]
        return Cut("inputs", (*parts, *self._drains(-1)))

    @property
    def biases(self) -> list[Layer]:
        """The biases that receive relevance, as layers of shape (channels,)."""
        return [layer for layer in self._drains(-1) if ".bias" in layer.name]

    def edge(self, source: str | Layer, consumer: str | Layer) -> Layer:
        """The copy of a tensor on its way to one of its consumers."""
        names = [x.name if isinstance(x, Layer) else x for x in (source, consumer)]
        layer = Layer(names[0], consumer=names[1])
        self._resolve(layer)
        return layer

    def cut(self, layer: Layer | str) -> Cut:
        """The cut through a layer: the layer and everything that bypasses it. Its mass is 1."""
        layer = Layer(layer) if isinstance(layer, str) else layer
        site, _ = self._resolve(layer)
        if site.port or site.consumer is not None:
            raise QuestionError("a cut goes through a tensor", got=repr(layer))
        return Cut(repr(layer), (layer, *self._bypass(site.node)))

    def _bypass(self, here: int) -> list[Layer]:
        tape, live = self._tape, self.base.arrivals
        parts: list[Layer] = []
        for node in tape.nodes:
            if node.index == here or node.index not in live:
                continue
            if node.index > here:
                if isinstance(node.op, Source):
                    parts.append(Layer(node.name))
                continue
            readers = [c for c in tape.consumers[node.index] if c in live and self._feeds(node.index, c)]
            later = [c for c in readers if c > here]
            if later and len(later) == len(readers):
                parts.append(Layer(node.name))
            else:
                parts += [Layer(node.name, consumer=tape.nodes[c].name) for c in later]
        return parts + self._drains(here)

    def _feeds(self, i: int, consumer: int) -> bool:
        node = self._tape.nodes[consumer]
        return any(j == i and self._network.coefficient(consumer, p) != 0 for p, j in enumerate(node.inputs))

    def _drains(self, above: int) -> list[Layer]:
        return [Layer(_drain_name(self._tape.nodes[i], port)) for i, port in sorted(self.base.drains) if i > above]

    def _resolve(self, layer: Layer) -> tuple[Site, Frame]:
        """Where a layer is on the tape, and its geometry."""
        if not isinstance(layer, Layer):
            raise QuestionError("not a layer", got=repr(layer), hint="R['name'] or nrm.layer('name')")
        if layer.consumer is not None:
            source, consumer = self._edge_ends(layer)
            return Site(source.index, consumer.index), self._frame(source, repr(layer))
        drain = self._drain(layer.name)
        if drain is not None:
            return drain
        node = self._tape.find(layer.name)
        return Site(node.index), self._frame(node, layer.name)

    def _edge_ends(self, layer: Layer) -> tuple[Node, Node]:
        assert layer.consumer is not None
        tape = self._tape
        if layer.consumer == "skip":
            return self._skip_ends(layer.name)
        source, consumer = tape.find(layer.name), tape.find(layer.consumer)
        if source.index not in consumer.inputs:
            readers = ", ".join(repr(tape.nodes[c].name) for c in tape.consumers[source.index]) or "nobody"
            raise QuestionError(
                "there is no such edge", got=repr(layer), expected=f"a consumer of {layer.name!r}: {readers}"
            )
        return source, consumer

    def _skip_ends(self, name: str) -> tuple[Node, Node]:
        tape, node = self._tape, self._tape.find(name)
        while not (isinstance(node.op, Combine) and node.op.kind == "add") and len(node.inputs) == 1:
            if isinstance(node.op, Linear):
                break
            node = tape.nodes[node.inputs[0]]
        plain = [j for j in node.inputs if not self._network.open[j]]
        if not (isinstance(node.op, Combine) and node.op.kind == "add") or len(plain) != 1 or len(node.inputs) < 2:
            raise QuestionError(
                f"layer {name!r} has no single skip connection", got=f"{len(plain)} plain terms",
                hint="R.edge(source, consumer) names any edge",
            )  # fmt: skip
        return tape.nodes[plain[0]], node

    def _drain(self, name: str) -> tuple[Site, Frame] | None:
        stem, _, call = name.partition("#")
        for port in PORTS:
            suffix = f".{port}"
            if name in self._tape.names or not (stem.endswith(suffix) or name.endswith(suffix)):
                continue
            base = name.removesuffix(suffix) if name.endswith(suffix) else stem.removesuffix(suffix) + f"#{call}"
            node = self._tape.find(base)
            if (node.index, port) not in self.base.drains:
                if not self._may_drain(node, port):
                    raise QuestionError(
                        f"layer {base!r} has no {port} of its own", got=repr(name),
                        hint="R.biases and R.inputs list what there is; a fused step has one bias, at its last tensor",
                    )  # fmt: skip
            shape = torch.Size(self._network.drain_shape(node.index, port))
            sample = node.sample if port == "sink" else (0 if node.sample is not None else None)
            channel = node.channel if port == "sink" else len(shape) - 1
            frame = Frame(name, shape, sample, channel, self._tape.batch, node.value.device)
            return Site(node.index, port=port), frame
        return None

    def _may_drain(self, node: Node, port: str) -> bool:
        if port == "offset":
            return isinstance(node.op, Pointwise) and node.op.offset != 0
        return self._network.is_terminal(node.index) or (port == "sink" and isinstance(node.op, Pointwise))

    def _frame(self, node: Node, label: str | None = None) -> Frame:
        return Frame(
            label or node.name, node.shape, node.sample, node.channel, self._tape.batch, node.value.device, node.owner
        )

    # ---- facts -----------------------------------------------------------------------------------------------

    @property
    def _tape(self) -> Tape:
        return self._network.tape

    @property
    def base(self) -> Base:
        """The kept sweep without events; computed when first needed."""
        if self._base is None:
            self._check_fresh()
            with torch.inference_mode(False), torch.no_grad():
                self._base = base_sweep(self._network, self._target.start)
        return self._base

    def __len__(self) -> int:
        return self._tape.batch

    @property
    def prediction(self) -> Tensor:
        """Each sample's top class (the flat index of its largest output)."""
        return self._target.prediction

    @property
    def target(self) -> Tensor | str:
        """The explained class of each sample, or how relevance is spread over the output."""
        return self._target.index if self._target.index is not None else str(self._target.spread)

    @property
    def value(self) -> Tensor:
        """The explained output of each sample; relevance is a share of it."""
        return self._target.value

    @property
    def labels(self) -> dict[str, Sequence[str]]:
        """Names for classes (``"output"``) and input positions (``"input"``), used wherever something is shown."""
        return dict(self._labels)

    @property
    def rules(self) -> str:
        """The composite's name."""
        return self._network.composite.name

    @property
    def layers(self) -> LayerTable:
        """Name, shape, channel axis, kind, whether it is a cut, and mass of every layer."""
        return layer_table(self._network, self.base, self._cut_flags())

    def _cut_flags(self) -> dict[int, bool]:
        return {
            node.index: not self._bypass(node.index) for node in self._tape.nodes if node.index in self.base.arrivals
        }

    def sample(self, i: int) -> SampleMeasure:
        """One sample's measure."""
        if not 0 <= i < len(self):
            raise QuestionError("no such sample", got=str(i), expected=f"0 to {len(self) - 1}")
        return SampleMeasure(self, i)

    def check(self, *, strict: bool = True) -> Check:
        """The certificate: does mass hold, where did it go, and how far may the numbers be trusted.

        Warns and raises as its verdict demands; ``strict=False`` returns the certificate whatever it says.
        """
        self._check_fresh()
        with torch.inference_mode(False), torch.no_grad():
            result = check_measure(self._network, self._target, self.base, full=True)
        if strict:
            result.speak(stacklevel=2)
        return result

    def _be_loud(self) -> None:
        """The light check, once, before the first answer."""
        if self._light is None:
            with torch.inference_mode(False), torch.no_grad():
                self._light = check_measure(self._network, self._target, self.base, full=False)
            self._light.speak(stacklevel=3)
        elif not all(self._light.ok):
            self._light.speak(stacklevel=3)

    # ---- resources -------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes held by this measure: activations, columns and kept messages (weights are the model's own)."""
        storages = {n.value.untyped_storage().data_ptr(): n.value.untyped_storage().nbytes() for n in self._tape.nodes}
        return sum(storages.values()) + self._network.nbytes + (0 if self._base is None else self._base.nbytes)

    def release(self) -> None:
        """Forgets kept messages and columns; the next question computes them again."""
        self._base = None
        self._network.release()

    def __enter__(self) -> Measure:
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def describe(self) -> dict[str, Any]:
        """Everything about this measure that a file should say, as plain data."""
        composite = self._network.composite
        return {
            "rules": composite.name,
            "changes": [[getattr(k, "__name__", k), repr(v)] for k, v in composite.changes],
            "bias": self._network.bias,
            "zero": self._network.zero,
            "normalize": self._network.normalize,
            "dtype": str(self._tape.dtype),
            "batch": len(self),
            "target": self.target if isinstance(self.target, str) else self.target.tolist(),
            "prediction": self.prediction.tolist(),
            "value": self.value.tolist(),
            "labels": {k: list(v) for k, v in self._labels.items()},
            "layers": [[row.name, list(row.shape)] for row in self.layers],
            "check": self.check(strict=False).describe(),
            "model_digest": self._digest(),
        }

    def _check_fresh(self) -> None:
        for name, weight, version in self._versions:
            if weight._version != version:
                raise NrmError(
                    "the model's weights have changed since this measure was made", where=name,
                    hint="make the measure again: nrm.measure(model, inputs)",
                )  # fmt: skip

    def _target_text(self) -> str:
        if self._target.index is None:
            return f"target {self._target.spread}"
        names = self._labels.get("output")
        shown = [
            str(i) if names is None or i >= len(names) else f"{i} ({names[i]})" for i in self._target.index.tolist()
        ]
        return "target " + (", ".join(shown[:4]) + (" ..." if len(shown) > 4 else ""))

    def __repr__(self) -> str:
        return measure_text(self._network, self._target, self._labels, self._light)

    def _repr_html_(self) -> str:
        return measure_html(self._network, self._target, self._labels, self._light)


class SampleMeasure:
    """One sample of a batch's measure: the same questions, answers with a batch of one."""

    def __init__(self, whole: Measure, index: int) -> None:
        self._whole = whole
        self._index = index

    def __call__(self, *arguments: Argument, given: Argument | Sequence[Argument] | None = None) -> Tensor:
        """The answer for this sample: ``(1, *axes)``."""
        return self._whole(*arguments, given=given)[self._index : self._index + 1]

    def __getitem__(self, name: str) -> Layer:
        return self._whole[name]

    def __len__(self) -> int:
        return 1

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._whole, name)
        if name in ("prediction", "target", "value") and isinstance(value, Tensor):
            return value[self._index : self._index + 1]
        return value

    def values(self, layer: Layer) -> Tensor:
        """The activations of a layer for this sample: ``(1, *layer shape)``."""
        return self._whole.values(layer)[self._index : self._index + 1]

    def __repr__(self) -> str:
        return f"sample {self._index} of\n{self._whole!r}"


def _drain_name(node: Node, port: str) -> str:
    stem, mark, call = node.name.partition("#")
    return f"{stem}.{port}{mark}{call}"


def _weight_versions(tape: Tape) -> list[tuple[str, Tensor, int]]:
    """The weights of the linear steps with their version counters, to notice training after the fact."""
    found = []
    for node in tape.nodes:
        weight = getattr(getattr(node.op, "map", None), "weight", None) if isinstance(node.op, Linear) else None
        if isinstance(weight, Tensor) and not weight.is_inference():
            found.append((node.name, weight, weight._version))
    return found


def _progress(show: bool | None) -> Any:
    def bar(chunks: Iterator[Any], total: int) -> Iterator[Any]:
        hidden = total < 2 or show is False
        delay = 0.0 if show else 2.0
        with contextlib.closing(
            tqdm(chunks, total=total, disable=hidden, delay=delay, desc="sweeps", leave=False)
        ) as it:
            yield from it

    return bar

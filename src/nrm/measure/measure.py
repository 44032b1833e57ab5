"""The measure: one object that answers every question about one prediction."""

from __future__ import annotations

import copy
import difflib
import importlib
import operator
import os
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from nrm.capture import Tape, capture_batch, plain_execution
from nrm.errors import QuestionError, names_options
from nrm.measure.asking import Listener
from nrm.measure.check import Check, Moved, check_measure, check_units, compare_outputs
from nrm.measure.classes import named_target
from nrm.measure.difference import Difference
from nrm.measure.labels import Names, read_labels
from nrm.measure.layers import Cut, LayerTable, layer_table
from nrm.measure.origin import Origin
from nrm.measure.places import Places
from nrm.measure.question import Argument, read_question
from nrm.measure.show import as_html, as_text, measure_rows
from nrm.measure.target import Target, read_target
from nrm.measure.tokens import find_tokens
from nrm.measure.weighing import Weighing
from nrm.memory import KEPT, memory_bound
from nrm.questions import Base, Kept, Layer, Partition, Set, Site
from nrm.rules import Between, coarse_tape, resolve
from nrm.steps import Network


@names_options
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
    labels: Mapping[str, Any] | None = None,
    memory: str | int = "auto",
    progress: bool | Listener | None = None,
) -> Measure:
    """The normalized relevance measure of a model's prediction for these inputs.

    ``inputs`` is a tensor, a tuple (positional arguments), a mapping (keyword arguments) or whatever the model takes;
    ``output`` picks what is explained (a key, or a function of the model's output); ``target`` is a class (by number,
    or by its name in ``labels={"output": [...]}``), one per sample, a tuple of indices, a set of outputs, ``"logits"``
    or ``"softmax"``, or None for each sample's top class.
    Of a language model None is the top token at the last position that is not padding (as ``attention_mask`` says),
    and ``(-1, token)`` a token there.
    ``rules`` is a composite's name, a rule, a mapping, or a rule between chosen layers (``nrm.Gradient()``); ``bias``
    is ``"ignore"`` or ``"input"``; ``zero`` says where the mass of columns without a sum goes. ``labels`` names the
    outputs and inputs wherever they are shown.
    ``memory`` bounds what answers may allocate (bytes, or text like "2 GiB"); ``progress`` shows a bar for long
    questions (True: for all, False: for none); a function is called with how much is done and the total (or None),
    again and again, and stops the question by raising.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> R = measure(model, torch.ones(1, 4))
    >>> round(float(sum(R(part.all) for part in R.inputs)), 4)
    1.0
    """
    _check_options(bias, zero, normalize)
    bound = memory_bound(memory)
    between = rules if isinstance(rules, Between) else None
    tape = capture_batch(model, inputs, output=output, batch_dim=batch_dim, dtype=dtype)
    origin = Origin(model, inputs, output, tape, every=between is not None)
    if between is not None:
        tape = coarse_tape(tape, between, bound)
    composite = resolve(rules, tape)
    chosen_bias = composite.bias if bias == "auto" else bias
    network = Network(
        tape, composite, bias=chosen_bias, zero=zero, normalize=normalize, spread=_is_word(target, "softmax")
    )
    return Measure(network, target, labels=labels, memory=bound, progress=progress, origin=origin)


def _is_word(target: Any, word: str) -> bool:
    return isinstance(target, str) and target == word


def _check_options(bias: str, zero: str, normalize: bool | str) -> None:
    for name, value, known in (
        ("bias", bias, ("auto", "ignore", "input")),
        ("zero", zero, ("sink", "uniform", "error")),
        ("normalize", normalize, (True, False, "raw")),
    ):
        if not any(value is k or (isinstance(k, str) and value == k) for k in known):
            near = difflib.get_close_matches(str(value), [k for k in known if isinstance(k, str)], n=1)
            raise QuestionError(
                f"unknown option {name}={value!r}", got=repr(value), expected=", ".join(map(repr, known)),
                hint=f"{name}={near[0]!r}" if near else None,
            )  # fmt: skip


class Measure(Weighing):
    """The relevance measure of one prediction (of every sample of a batch, each with its own).

    Called with sets and partitions of layers it gives their joint relevance, with ``given=`` the conditional one.
    """

    def __init__(
        self,
        network: Network,
        target: Any,
        *,
        labels: Mapping[str, Any] | None,
        memory: int,
        progress: bool | Listener | None,
        origin: Origin,
    ) -> None:
        self._network = network
        self._memory = memory
        self._show_progress = progress
        self._origin = origin
        self._light: Check | None = None
        self._light_in_units: Check | None = None
        node = self._tape.nodes[self._tape.output]
        self._kept = Kept(network, node.value[None], memory // KEPT)
        self._places = Places(self._kept)
        self._labels = read_labels(labels, lambda name: self._places.resolve(Layer(name))[1])
        target = named_target(target, labels)
        if isinstance(target, Set):
            self._refuse_other_layer(target)
        self._target: Target = read_target(target, node.value, self._places.frame(node, "output"), self._tape.ends)
        self._kept.start = self._target.start

    def _refuse_other_layer(self, target: Set) -> None:
        site, _ = self._places.resolve(target.layer)
        if site != Site(self._tape.output):
            raise QuestionError(
                "a target is a set of outputs", got=repr(target), expected="a set of nrm.output",
                hint="R(...) takes sets of other layers",
            )  # fmt: skip

    def values(self, layer: Layer | str) -> Tensor:
        """The activations of a layer: ``(batch, *layer shape)``."""
        layer = Layer(layer) if isinstance(layer, str) else layer
        site, frame = self._places.resolve(layer)
        if site.port:
            raise QuestionError(f"{layer} has no activations", got=repr(layer), expected="a tensor of the network")
        return self._mine(frame.to_samples(self._tape.nodes[site.node].value[None])[0]).clone()

    def in_units(self, *question: Argument) -> Tensor:
        """``R(*question)`` in units of the output: every share times the explained output of its sample.

        The measure of everything is then the output itself, so that samples, classes and models can be compared, and
        an output close to 0, whose shares are large and cancel, is answered as well as any other.

        >>> model = nn.Linear(2, 1)
        >>> _ = model.load_state_dict({"weight": torch.tensor([[2.0, -1.0]]), "bias": torch.tensor([-1.0])})
        >>> R = measure(model, torch.tensor([[3.0, 1.0]]))  # 2 * 3 - 1 - 1 = 4
        >>> R.in_units(R.input), R.in_units(R.biases[0])
        (tensor([[ 6., -1.]]), tensor([[-1.]]))
        """
        one = self._meant(read_question(question, None))
        meant = self if one is None else one
        if bool((self._target.value == 0).any()):
            return meant._without_shares()(*question)
        shares = meant._judged_in_units()(*question)
        return shares * meant.value.reshape(-1, *(1,) * (shares.ndim - 1))

    def _without_shares(self) -> Self:
        """A twin whose densities begin with 1 at the explained output instead of 1 over it: nothing is divided by 0."""
        twin = copy.copy(self)
        target, frame = self._target, self._places.frame(self._tape.nodes[self._tape.output])
        one = frame.from_samples(target.allowed[None].to(target.start))
        value = target.value.view(-1, *(1,) * len(target.shape))
        relevance = frame.from_samples((frame.to_samples(target.start)[0] * value)[None])
        twin._kept = Kept(self._network, relevance, self._memory // KEPT, density=one)
        twin._places = Places(twin._kept)
        self._origin.check_fresh()
        with plain_execution():
            twin._light = self._own_check(check_units(self._network, self._target, twin._kept.base))
        return twin

    def _judged_in_units(self) -> Self:
        """A twin for answers in units of the output: its light check is about these, not about shares."""
        twin = copy.copy(self)
        if self._light_in_units is None:
            self._origin.check_fresh()
            with plain_execution():
                light = check_measure(self._network, self._target, self.base, full=False, units=True)
            self._light_in_units = self._own_check(light)
            self._light_in_units.speak(stacklevel=4)
        twin._light = self._light_in_units
        return twin

    def __sub__(self, other: object) -> Difference:
        """The difference of two measures: of two targets, two inputs, or two checkpoints of one model."""
        return Difference(self, other) if isinstance(other, Measure) else NotImplemented

    # ---- places ----------------------------------------------------------------------------------------------

    def __getitem__(self, name: str | Layer) -> Layer:
        """The layer of this name, checked against this capture."""
        return self._places.known(name if isinstance(name, Layer) else Layer(name))

    __iter__ = None

    def _ipython_key_completions_(self) -> list[str]:
        return self._places.names()

    def find(self, pattern: str) -> list[Layer]:
        """The layers whose name matches a pattern with ``*`` and ``?``, in the order of the forward pass."""
        return self._places.find(pattern)

    @property
    def input(self) -> Layer:
        """The user's input as a layer."""
        return self["input"]

    @property
    def output(self) -> Layer:
        """The explained output as a layer."""
        return self["output"]

    @property
    def tokens(self) -> Partition:
        """The tokens of a text, each with all that the model adds up for it: word, position, type.

        An axis, as ``R.input.positions`` is for models with a single embedding: ``R(R.tokens)`` is the relevance of
        every token, ``R.tokens[3]`` an event. Where embeddings are not added token by token, only the words count.

        >>> class Model(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.words, self.places = nn.Embedding(9, 4), nn.Embedding(6, 4)
        ...         self.head = nn.Linear(4, 2)
        ...     def forward(self, ids):
        ...         tokens = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        ...         return self.head(tokens.relu().mean(1))
        >>> _ = torch.manual_seed(0)
        >>> R = measure(Model(), torch.tensor([[3, 1, 4]]), rules="lrp-0", bias="ignore")
        >>> R(R.tokens).shape, bool(torch.isclose(R(R.tokens).sum(), R(R.input.all) + R(R["places.weight"].all)))
        (torch.Size([1, 3]), True)
        """
        return self[find_tokens(self._tape, self._network.rules.reached).name].positions

    @property
    def inputs(self) -> Cut:
        """The whole input cut: the user's tensors, inputs in the middle, biases, offsets and sinks. Its mass is 1."""
        return self._places.inputs()

    @property
    def biases(self) -> list[Layer]:
        """The biases that receive relevance, as layers of shape (channels,)."""
        return self._places.biases()

    def edge(self, source: str | Layer, consumer: str | Layer) -> Layer:
        """The copy of a tensor on its way to one of its consumers."""
        names = [x.name if isinstance(x, Layer) else x for x in (source, consumer)]
        return self[Layer(names[0], consumer=names[1])]

    def cut(self, layer: Layer | str) -> Cut:
        """The cut through a layer: the layer and everything that bypasses it. Its mass is 1."""
        return self._places.cut(Layer(layer) if isinstance(layer, str) else layer)

    # ---- facts -----------------------------------------------------------------------------------------------

    @property
    def _tape(self) -> Tape:
        return self._network.tape

    @property
    def base(self) -> Base:
        """The kept sweep without events; computed when first needed."""
        return self._kept.base

    def __len__(self) -> int:
        return self._tape.batch

    @property
    def _samples(self) -> range:
        """Which samples of the batch this measure is about."""
        return range(self._tape.batch)

    @property
    def prediction(self) -> Tensor:
        """Each sample's largest output: its class, or its index along every axis if the output has several."""
        return self._mine(self._target.coordinates(self._target.prediction)).clone()

    @property
    def target(self) -> Tensor | str:
        """The explained output of each sample in the same form, or how relevance is spread over the outputs."""
        if self._target.index is None:
            return str(self._target.spread)
        return self._mine(self._target.coordinates(self._target.index)).clone()

    @property
    def value(self) -> Tensor:
        """The explained output of each sample; relevance is a share of it."""
        return self._mine(self._target.value).clone()

    @property
    def labels(self) -> dict[str, Names]:
        """Names for classes (``"output"``) and input positions (``"input"``), used wherever something is shown."""
        return dict(self._labels)

    @property
    def rules(self) -> str:
        """The composite's name."""
        return self._network.composite.name

    @property
    def layers(self) -> LayerTable:
        """Name, shape, channel axis, kind, whether it is a cut, and mass of every layer."""
        self._origin.check_fresh()
        with plain_execution():
            flags = self._places.cut_flags(), self._places.bypassed()
            return layer_table(self._network, self.base, *flags, self._samples)

    def sample(self, i: int) -> Self:
        """One sample's measure."""
        index = operator.index(i) if hasattr(i, "__index__") else len(self)
        if not -len(self) <= index < len(self):
            raise QuestionError("no such sample", got=str(i), expected=f"0 to {len(self) - 1}")
        return SampleMeasure(self, self._samples[index])  # type: ignore[return-value]

    def check(self, *, strict: bool = True) -> Check:
        """The certificate: does mass hold, where did it go, and how far may the numbers be trusted.

        Warns and raises as its verdict demands; ``strict=False`` returns the certificate whatever it says.
        """
        self._origin.check_fresh()
        with plain_execution():
            result = self._own_check(
                check_measure(self._network, self._target, self.base, full=True, moved=self._moved())
            )
        if strict:
            result.speak(stacklevel=3)
        return result

    def report(self, path: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """Everything about this prediction on one page: a file if there is a path, else shown by a notebook.

        The page needs no network and no server. ``layers=`` chooses its columns (names, ``(name, "clusters")``,
        partitions), ``nodes=`` how many blocks of each are shown, ``image=`` what is drawn under the heat maps,
        ``flows=`` how many chains are listed, ``title=`` its title; ``store=`` (what :func:`nrm.relmax` gave, or its
        folder) and ``dataset=`` add the samples in which nodes count most. A page is about one sample:
        ``R.sample(0).report()``.
        """
        room = importlib.import_module("nrm.report")  # a later room: it asks measures, and is needed only here
        made = room.Report(room.View(self, **options).whole())
        if path is not None:
            made.save(path)
        return made

    def _moved(self) -> Moved | None:
        """The outputs against those in the model's own precision, where that is not the measure's."""
        own = self._origin.own_output()
        if own is None:
            return None
        node = self._tape.nodes[self._tape.output]
        return compare_outputs(node.value, own.to(node.value), self._places.frame(node), self._tape.ends)

    def _own_check(self, check: Check) -> Check:
        return check

    def _be_loud(self) -> None:
        """The light check, once, before the first answer; again as long as it has an error to raise."""
        if self._light is not None and all(self._light.ok):
            return
        if self._light is None:
            self._light = self._own_check(check_measure(self._network, self._target, self.base, full=False))
        self._light.speak(stacklevel=4)

    # ---- resources -------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes held by this measure: activations, columns and kept messages (weights are the model's own)."""
        return self._tape.nbytes + self._kept.nbytes

    def release(self) -> None:
        """Forgets kept messages and columns; the next question computes them again."""
        self._kept.release()

    def __enter__(self) -> Measure:
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def describe(self, check: Check | None = None) -> dict[str, Any]:
        """Everything about this measure that a file should say, as plain data; ``check`` is a known certificate."""
        composite = self._network.composite
        return {
            "rules": composite.name,
            "composite": repr(composite),
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
            "check": (check or self.check(strict=False)).describe(),
            "model_digest": self._origin.digest(),
        }

    def __repr__(self) -> str:
        return as_text("normalized relevance measure", self._rows())

    def _repr_html_(self) -> str:
        return as_html("normalized relevance measure", self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        return measure_rows(self._network, self._target, self._labels, self._light, self._samples)


class SampleMeasure(Measure):
    """One sample of a batch's measure: the same questions, with answers for a batch of one.

    It shares everything with the whole; questions are answered for the batch and cut to the sample.
    """

    def __init__(self, whole: Measure, index: int) -> None:
        vars(self).update(vars(whole))
        self._index = index
        if self._light is not None:
            self._light = self._own_check(self._light) if len(self._light.mass) > 1 else self._light
        self._light_in_units = None

    def __len__(self) -> int:
        return 1

    @property
    def labels(self) -> dict[str, Names]:
        per_sample = {k: v for k, v in self._labels.items() if v and isinstance(v[0], tuple)}
        return {**self._labels, **{k: (v[self._index],) for k, v in per_sample.items()}}

    @property
    def _samples(self) -> range:
        return range(self._index, self._index + 1)

    def _mine(self, batch: Tensor) -> Tensor:
        return batch[self._index : self._index + 1]

    def _own_check(self, check: Check) -> Check:
        return check.sample(self._index)

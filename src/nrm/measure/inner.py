"""What a measure is made of, and what other rooms use of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from tqdm.auto import tqdm

from nrm.capture import Tape, plain_execution
from nrm.errors import QuestionError
from nrm.measure.check import Check
from nrm.measure.checking import check_measure, check_units, compare_outputs
from nrm.measure.classes import named_target
from nrm.measure.labels import Names, read_labels
from nrm.measure.origin import Origin
from nrm.measure.places import Places
from nrm.measure.target import Target, read_target
from nrm.memory import KEPT
from nrm.questions import Answerer, Base, Frame, Kept, Layer, Progress, Question, Set, Site
from nrm.steps import Network

Listener = Callable[[int, int | None], None]
"""Is told how many parts of a long question are done, and of how many; stops the question by raising."""


def progress_of(show: bool | Listener | None, what: str = "sweeps") -> Progress:
    """Shows how far an iteration is, as a user wishes: by a function that is told, or by a bar."""

    def tell(chunks: Iterator[Any], total: int | None) -> Iterator[Any]:
        assert callable(show)
        for done, chunk in enumerate(chunks):
            show(done, total)
            yield chunk

    def bar(chunks: Iterator[Any], total: int | None) -> Iterator[Any]:
        hidden = show is False or (show is None and total is not None and total < 2)
        delay = 0.0 if show else 2.0
        shown = tqdm(chunks, total=total, disable=hidden, delay=delay, desc=what, leave=False)
        with contextlib.closing(shown):
            yield from shown

    return tell if callable(show) else bar


@dataclass(eq=False)
class Inner:
    """The inside of a measure, ``R.inner``: for the rooms of this package; users need none of it.

    ``network`` has the nodes and maps, ``places`` turns layers into sites, ``target`` is what is explained, ``kept``
    what questions have in common, ``samples`` are the samples of the batch that the measure is about, and ``light`` is
    the check that was made before the first answer. Questions are answered for the whole batch, and cut to the samples.
    """

    network: Network
    target: Target
    names: dict[str, Names]
    memory: int
    show: bool | Listener | None
    origin: Origin
    kept: Kept
    places: Places
    samples: range
    light: Check | None = None
    light_in_units: Check | None = None

    @classmethod
    def of(
        cls, network: Network, target: Any, *, labels: Mapping[str, Any] | None, memory: int,
        progress: bool | Listener | None, origin: Origin,
    ) -> Inner:  # fmt: skip
        """The inside of the measure of a network's target."""
        tape = network.tape
        node = tape.nodes[tape.output]
        kept = Kept(network, node.value[None], memory // KEPT)
        places = Places(kept)
        names = read_labels(labels, lambda name: places.resolve(Layer(name))[1])
        target = named_target(target, labels)
        if isinstance(target, Set) and places.resolve(target.layer)[0] != Site(tape.output):
            raise QuestionError(
                "a target is a set of outputs", got=repr(target), expected="a set of nrm.output",
                hint="R(...) takes sets of other layers",
            )  # fmt: skip
        runs = None if tape.runs is None else [run.nodes[run.output].value for run in tape.runs]
        read = read_target(target, node.value, places.frame(node, "output"), tape.ends, runs)
        kept.start = read.start
        return cls(network, read, names, memory, progress, origin, kept, places, range(tape.batch))

    def explaining(self, target: Any) -> Inner:
        """The inside of the measure of another target: of this network, with nothing captured anew."""
        return Inner.of(
            self.network, target, labels=self.names, memory=self.memory, progress=self.show, origin=self.origin
        )

    @property
    def tape(self) -> Tape:
        """The recorded ops."""
        return self.network.tape

    @property
    def base(self) -> Base:
        """The sweep without events; computed when first needed."""
        return self.kept.base

    @property
    def labels(self) -> dict[str, Names]:
        """Names for classes and input positions; of one sample, its own."""
        if len(self.samples) == self.tape.batch:
            return dict(self.names)
        per_sample = {k: v for k, v in self.names.items() if v and isinstance(v[0], tuple)}
        return {**self.names, **{k: tuple(v[s] for s in self.samples) for k, v in per_sample.items()}}

    def resolve(self, layer: Layer) -> tuple[Site, Frame]:
        """The site of a layer, and its geometry."""
        return self.places.resolve(layer)

    def mine(self, batch: Tensor) -> Tensor:
        """The part of a result, samples first, that belongs to this measure."""
        return batch[self.samples.start : self.samples.stop]

    def sample(self, number: int) -> Inner:
        """One sample of the batch: shares everything with the whole."""
        one = replace(self, samples=range(number, number + 1), light_in_units=None)
        one.light = None if self.light is None else one.judged(self.light)
        return one

    def about(self, question: Question) -> Inner:
        """What a question is about: the one sample that its sets name, or everything here."""
        sample = question.sample(self.samples)
        return self if sample is None or len(self.samples) == 1 else self.sample(sample)

    def progress(self, what: str = "sweeps") -> Progress:
        """Shows how far an iteration is, as the user wished."""
        return progress_of(self.show, what)

    def answerer(self) -> Answerer:
        """Who carries out plans."""
        return Answerer(
            self.network, self.base, memory=self.memory, progress=progress_of(self.show), messages=self.kept.messages
        )

    # ---- the check before the first answer -----------------------------------------------------------------------

    def judged(self, check: Check) -> Check:
        """The part of a certificate that is about this measure."""
        return check if len(check.mass) == len(self.samples) else check.sample(self.samples[0])

    def be_loud(self) -> None:
        """The light check, once, before the first answer; again as long as it has an error to raise."""
        if self.light is not None and all(self.light.ok):
            return
        if self.light is None:
            self.light = self.judged(check_measure(self.network, self.target, self.base, full=False))
        self.light.speak()

    def certificate(self) -> Check:
        """The full check; where the model has another precision, its own output is looked at, too."""
        self.origin.check_fresh()
        with plain_execution():
            own, node = self.origin.own_output(), self.tape.here.nodes[self.tape.output]
            moved = None
            if own is not None:
                moved = compare_outputs(node.value, own.to(node.value), self.places.frame(node), self.tape.ends)
            return self.judged(check_measure(self.network, self.target, self.base, full=True, moved=moved))

    def in_units(self) -> Inner:
        """A twin for answers in units of the output: its light check is about these, not about shares."""
        if self.light_in_units is None:
            self.origin.check_fresh()
            with plain_execution():
                light = check_measure(self.network, self.target, self.base, full=False, units=True)
            self.light_in_units = self.judged(light)
            self.light_in_units.speak()
        return replace(self, light=self.light_in_units)

    def without_shares(self) -> Inner:
        """A twin whose densities begin with 1 at the explained output instead of 1 over it: nothing is divided by 0."""
        target, frame = self.target, self.places.frame(self.tape.nodes[self.tape.output])
        one = frame.from_samples(target.allowed[None].to(target.start))
        value = target.value.view(-1, *(1,) * len(target.shape))
        relevance = frame.from_samples((frame.to_samples(target.start)[0] * value)[None])
        kept = Kept(self.network, relevance, self.memory // KEPT, density=one)
        self.origin.check_fresh()
        with plain_execution():
            light = self.judged(check_units(self.network, self.target, kept.base))
        return replace(self, kept=kept, places=Places(kept), light=light)

"""What a measure would take, before it is made: the same code, run on shapes.

Nothing is known here of steps, rules or blocks. A twin of the model without numbers is measured and asked as a user
would do it, under :class:`nrm.shapes.Shapes`, which counts what its tensors would take at every moment.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from nrm.capture import own_output, tensors_in, unwrap
from nrm.devices import offloading
from nrm.errors import MemoryLimitError, NrmError, NrmWarning, QuestionError
from nrm.extras import extra
from nrm.measure.checking import check_measure
from nrm.measure.measure import Measure
from nrm.measure.reference import changed
from nrm.memory import available, memory_bound
from nrm.numbers import size_text
from nrm.shapes import Shapes, Unknown

TIGHT = 2**26
"""A bound of memory by which every measure of a deep network is lean."""

MAPPINGS = ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "MODEL_FOR_CAUSAL_LM_MAPPING", "MODEL_MAPPING")
"""Where transformers says which class a configuration is of, if it does not say so itself."""

TRIES = 4
"""So many lengths are tried in the search for the longest that fits."""

SHARE = 2
"""Values that may take more than one part in so many of what is available are estimated before they are computed."""

Asked = Callable[[Measure], Any]
Make = Callable[..., Measure]


@dataclass(frozen=True)
class Estimate:
    """What a measure and one question would take; bytes are those of tensors, beyond the weights.

    What the allocator leaves between tensors, and Python's own objects, come on top: up to a third, or what ``nrm``
    lets it keep for the next pass, on Linux; a few percent if ``MALLOC_MMAP_THRESHOLD_=131072`` is in the
    environment.
    """

    what: str
    """What was estimated: the inputs, and the bound of memory."""
    weights: int
    """Bytes of parameters and buffers."""
    forward: int
    """The peak of a forward pass alone."""
    capture: int
    """The peak while the measure is made."""
    question: int
    """The peak of the first question, with the sweep that all questions share."""
    held: int
    """What is held from then on."""
    passes: float
    """Arithmetic, in forward passes: that of the capture included."""
    blocks: int
    """How many blocks are computed again when they are read; 0 if all values are kept."""
    free: int = field(compare=False)
    """What the process may take, for weights as well if they are not there yet."""
    missing: int
    """Weights that are not in memory yet."""
    advice: tuple[str, ...] = ()
    """What would fit, if this does not."""

    @property
    def peak(self) -> int:
        """The largest amount beyond the weights."""
        return max(self.capture, self.question)

    @property
    def total(self) -> int:
        """Weights and peak together."""
        return self.weights + self.peak

    @property
    def fits(self) -> bool:
        """Whether there is so much memory now."""
        return self.missing + self.peak <= self.free

    def __str__(self) -> str:
        lean = f"{self.blocks} blocks are computed again when they are read" if self.blocks else "all values are kept"
        verdict = "fits" if self.fits else "does not fit"
        rows = [
            ("weights", size_text(self.weights)), ("forward pass", size_text(self.forward)),
            ("capture", f"{size_text(self.capture)} at its peak; {lean}"),
            ("question", f"{size_text(self.question)} at its peak, then {size_text(self.held)} held"),
            ("altogether", f"{size_text(self.total)} of tensors; {verdict} into the {size_text(self.free)} available"),
            ("arithmetic", f"{self.passes:.1f} forward passes"), *(("try", advice) for advice in self.advice),
        ]  # fmt: skip
        return "\n".join([f"estimate for {self.what}", *(f"  {name:<13} {text}" for name, text in rows)])

    __repr__ = __str__


class Sketch:
    """A model without numbers, and what is to be asked of it."""

    def __init__(
        self, make: Make, model: Any, inputs: Any, tokens: int | None, question: Any, options: dict[str, Any]
    ) -> None:
        if (inputs is None) == (tokens is None):
            raise QuestionError(
                "an estimate is about one input", got="none" if inputs is None else "inputs and tokens",
                expected="an example, a shape, or tokens=", hint="nrm.estimate(model, tokens=512)",
            )  # fmt: skip
        self.shapes = Shapes()
        plain = unwrap(model) if isinstance(model, nn.Module) else _from_config(model)
        _refuse_late(plain)
        self.model = twin(plain, self.shapes)
        for buffer in self.model.buffers():
            self.shapes.count(buffer)
        self.weights = self.shapes.now
        self.missing = 0 if isinstance(model, nn.Module) and not _is_meta(plain) else self.weights
        self.make, self.inputs, self.question = make, inputs, question
        self.options = options

    def run(self, tokens: int | None, memory: Any) -> Estimate:
        """Measures the twin and asks the question."""
        shapes, options = self.shapes, {**self.options, "memory": memory}
        inputs = self._inputs(tokens)
        if options.get("against") is True:
            options["against"] = inputs
        begin, flops = shapes.now, shapes.flops
        try:
            with warnings.catch_warnings(), shapes:
                warnings.simplefilter("ignore", NrmWarning)
                warnings.filterwarnings("ignore", "Accessing the data pointer")  # by the model's own code
                forward = self._peak(lambda: own_output(self.model, inputs, options.get("output")), begin)[0]
                once, flops = shapes.flops - flops, shapes.flops
                capture, R = self._peak(lambda: self.make(self.model, inputs, **options), begin)
                asked, answer = self._peak(functools.partial(self._ask, R), begin)
                held = shapes.now - begin
        except (*Unknown, RuntimeError) as error:  # torch has no shapes for some of its kernels
            raise QuestionError(
                "what this takes depends on numbers, which an estimate does not have",
                got=f"{type(error).__name__}: {str(error).splitlines()[0]}"[:200],
                expected="a model whose shapes follow from those of its inputs",
                hint="a measure of a small input: R.nbytes, and R.plan(...) for questions",
            ) from error  # fmt: skip
        tape = R.inner.tape
        blocks = len({node.block for node in tape.nodes if node.block is not None})
        bound = memory_bound(memory)
        shown = ", ".join(str(tuple(t.shape)) for t in tensors_in(inputs)) if tokens is None else f"{tokens} tokens"
        del R, answer
        return Estimate(
            f"{type(self.model).__name__}, {shown}, memory of answers up to {size_text(bound)}", self.weights, forward,
            capture, asked, held, (shapes.flops - flops) / max(once, 1.0), blocks, available(), self.missing,
        )  # fmt: skip

    def _peak(self, call: Callable[[], Any], begin: int) -> tuple[int, Any]:
        self.shapes.forget_peak()
        result = call()
        return self.shapes.peak - begin, result

    def _inputs(self, tokens: int | None) -> Any:
        """The inputs, whose floats are shapes."""
        if tokens is not None:
            return torch.zeros(1, tokens, dtype=torch.long)
        if isinstance(self.inputs, tuple) and self.inputs and all(type(n) is int for n in self.inputs):
            if getattr(self.model, "main_input_name", None) == "input_ids":
                return torch.zeros(self.inputs, dtype=torch.long)
            return self.shapes.shape_of(torch.empty(self.inputs, device="meta"))
        return changed(self.inputs, lambda t: self.shapes.shape_of(t) if t.is_floating_point() or t.is_meta else t)

    def _ask(self, R: Measure) -> Any:
        inner = R.inner
        check = check_measure(inner.network, inner.target, inner.base, full=False)
        # It was made as ever, and has nothing to say about numbers that are not there.
        inner.light = inner.light_in_units = replace(inner.judged(check), errors=(), cautions=())
        if self.question is None:
            return R(R.input.positions if R.inner.tape.ends is not None else R.input)
        if callable(self.question):
            return self.question(R)
        return R(*self.question) if isinstance(self.question, tuple) else R(self.question)

    def advise(self, tokens: int | None, found: Estimate) -> list[str]:
        """What would fit, each tried in the same way."""
        if self.missing and self.weights >= found.free:
            return [f"the weights alone are {size_text(self.weights)}: offload them (device_map) or quantize them"]
        advice, memory = [], self.options.get("memory", "auto")
        if not found.blocks:
            lean = self.run(tokens, TIGHT)
            if lean.fits:
                return [f"memory='64 MiB', by which {lean.blocks} blocks are computed again: {size_text(lean.total)}"]
            memory, found = TIGHT, lean
        longest = None if tokens is None else self._longest(tokens, memory, found)
        if longest is not None:
            bound = ", memory='64 MiB'" if memory == TIGHT else ""
            advice.append(f"at most about {longest} tokens{bound}")
        return advice or ["a smaller input or batch, or a machine with more memory"]

    def _longest(self, tokens: int, memory: Any, found: Estimate) -> int | None:
        """The longest text that was found to fit, between one that does and one that does not."""
        low, high, peaks = 0, tokens, {0: 0, tokens: found.peak}
        for _ in range(TRIES):
            slope = (peaks[high] - peaks[low]) / (high - low)
            tried = low + int((found.free - self.missing - peaks[low]) / max(slope, 1.0))
            tried = min(max(tried, low + 1), high - 1)
            if tried <= low:
                break
            one = self.run(tried, memory)
            peaks[tried] = one.peak
            low, high = (tried, high) if one.fits else (low, tried)
        return low or None


def refuse_unfit(make: Make, model: Any, inputs: Any, options: dict[str, Any]) -> None:
    """Refuses to measure what would not fit into memory, before it is computed; what is small is not looked at."""
    own = list(model.parameters()) if isinstance(model, nn.Module) else []
    plain = all(type(p) is nn.Parameter and p.device.type == "cpu" for p in own)
    most = _at_most(own, tensors_in(inputs)) * SHARE
    if not own or not plain or most < TIGHT or most < available():
        return
    try:
        sketch = Sketch(make, model, inputs, None, None, {**options, "progress": False})
        found = sketch.run(None, options["memory"])
    except (NrmError, RuntimeError, TypeError):  # what cannot be estimated is measured, or refused, as ever
        return
    if not found.fits:
        raise MemoryLimitError(
            "this needs more memory than there is", where="the measure and its first heat map",
            got=f"{size_text(found.peak)} beyond the weights", expected=f"at most {size_text(found.free)}",
            hint="; ".join([*sketch.advise(None, found), "nrm.estimate(model, tokens=...) tries other sizes"]),
        )  # fmt: skip


def _at_most(weights: list[nn.Parameter], given: list[Tensor]) -> int:
    """Bytes that values of a pass hardly exceed, if its layers keep the positions of its input."""
    if not given:
        return 0
    rows = sum(p.shape[0] for p in weights if p.ndim > 1)
    first = given[0]
    if first.is_floating_point():  # layers of images have fewer positions than their inputs
        return first.numel() // max(1, first.shape[1] if first.ndim > 2 else 1) * rows
    return 16 * first.numel() * (rows + 64 * first.shape[-1] if first.ndim else 1)


def twin(model: nn.Module, shapes: Shapes) -> nn.Module:
    """A copy of a model whose parameters are shapes, and all else without numbers; other buffers stay as they are."""
    own: dict[int, Tensor] = {id(p): p for p in model.parameters()}
    loose = [t for module in model.modules() for t in tensors_in([*module._buffers.values(), *vars(module).values()])]
    own |= {id(t): t for t in loose if t.is_meta}
    made: dict[int, Any] = {key: shapes.shape_of(tensor) for key, tensor in own.items()}
    with torch.no_grad():
        return copy.deepcopy(model, made)


def _is_meta(model: nn.Module) -> bool:
    return any(p.is_meta for p in model.parameters())


def _from_config(config: Any) -> nn.Module:
    """The model that a configuration of transformers describes, without weights."""
    if not hasattr(config, "model_type") or not hasattr(config, "to_dict"):
        raise QuestionError(
            "not a model", got=type(config).__name__, expected="a torch.nn.Module, or a configuration of transformers"
        )
    with extra("text", "nrm.estimate"):
        import transformers
    kind, dtype = _kind_of(config, transformers), getattr(config, "dtype", None) or torch.get_default_dtype()
    with torch.device("meta"):
        made: nn.Module = kind(config)
    return made.to(dtype).eval()


def _kind_of(config: Any, transformers: Any) -> Any:
    """The class that a configuration names; else the one that writes texts, with or without an encoder."""
    kinds = [getattr(transformers, name, None) for name in getattr(config, "architectures", None) or ()]
    known = (getattr(transformers, name) for name in MAPPINGS)
    kinds += [mapping[type(config)] for mapping in known if type(config) in mapping]
    found = next((kind for kind in kinds if isinstance(kind, type)), None)
    if found is None:
        raise QuestionError(
            "no model of transformers has this configuration", got=type(config).__name__,
            expected="one with a class in transformers", hint="the model itself, made on torch.device('meta')",
        )  # fmt: skip
    return found


def _refuse_late(model: nn.Module) -> None:
    """Refuses weights that are read or unpacked when they are used: they have no twin made of shapes."""
    packed = next((type(p).__name__ for p in model.parameters() if type(p) not in (nn.Parameter, Tensor)), None)
    offloaded = any(offloading(module) for module in model.modules())
    if offloaded or packed is not None:
        raise QuestionError(
            "weights that are offloaded or quantized cannot be estimated", where=type(model).__name__,
            got="weights that are offloaded" if offloaded else f"weights of type {packed}",
            expected="plain weights, or none", hint="nrm.estimate(model.config, tokens=...): with plain weights; "
            "what is beyond them is the same, but for one layer's weights at a time",
        )  # fmt: skip

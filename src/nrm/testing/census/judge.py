"""What a census finds out about one model: is it captured, do its values and masses hold, and what does it cost."""

from __future__ import annotations

import copy
import functools
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nrm.capture import own_output, tensors_in
from nrm.errors import NrmError
from nrm.measure import Measure, measure
from nrm.questions import Layer
from nrm.testing.census.subject import NotMadeError, Subject

OFF = 1e-4
"""A share by which values and masses may be off; measures are made in double precision, models are in single."""
CUTS = 5
"""Cuts that are asked for, besides that of the input."""


@dataclass(frozen=True)
class CensusRow:
    """One line of the result of a census. What is None was not reached.

    ``verdict`` is "answered" (every number holds and the certificate accepts), "not accepted" (the certificate says
    that the numbers are no use), "refused" (an error of ours that names the reason), "wrong" (a value or a mass is off,
    and the certificate accepts all the same), "failed" (an error that is not ours), "too large" (beyond the bounds of
    time and memory), or "not made" (no such model could be made and run). ``value`` and the masses are how far they are
    off; ``cost`` counts forward passes. ``reference`` says what the contrast is against: "other" inputs, or "near" ones
    where the model chooses other things for those (experts, boxes).
    """

    of: str
    name: str
    verdict: str = "answered"
    model: str = ""
    value: float | None = None
    mass: float | None = None
    cuts: float | None = None
    contrast: float | None = None
    contrast_verdict: str = ""
    reference: str = ""
    cost: float | None = None
    seconds: float | None = None
    words: str = ""
    contrast_words: str = ""
    trace: str = ""

    def describe(self) -> dict[str, Any]:
        """The finding as plain data."""
        return asdict(self)


def judge(of: str, name: str, make: Callable[[], Subject]) -> CensusRow:
    """Makes one model and finds out about it. No error of any kind leaves this."""
    found, begin = CensusRow(of, name), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            subject = make()
        except Exception as error:
            verdict = "too large" if _is_large(error) else "not made"
            return replace(found, verdict=verdict, words=words_of(error), trace=_trace(error))
        found = replace(found, model=type(subject.model).__name__)
        found = _plain(found, subject)
        if found.verdict == "answered":
            found = _contrasted(found, subject)
    return replace(found, seconds=round(time.process_time() - begin, 2))


def words_of(error: BaseException) -> str:
    """An error in one line: what, and for ours where, got and the hint."""
    if isinstance(error, NotMadeError):
        return str(error)
    if isinstance(error, NrmError):
        return "; ".join(text for text in (error.what, error.where, error.got, error.hint) if text)
    text = next((line for line in reversed(str(error).splitlines()) if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:300]


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)[-4:])[-2000:]


def _failed(found: CensusRow, error: Exception) -> CensusRow:
    if isinstance(error, NrmError):
        return replace(found, verdict="refused", words=words_of(error))
    if _is_large(error):
        return replace(found, verdict="too large", words=words_of(error))
    return replace(found, verdict="failed", words=words_of(error), trace=_trace(error))


def _is_large(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)


def _plain(found: CensusRow, subject: Subject) -> CensusRow:
    """The measure of a prediction."""
    try:
        own_output(subject.model, subject.inputs, subject.output)  # the first pass takes longer
        begin = time.process_time()
        own = own_output(subject.model, subject.inputs, subject.output)
        forward = time.process_time() - begin
        begin = time.process_time()
        R = _measured(subject)
        R(R.input) if len(R.inputs) == 1 else [R(part) for part in R.inputs]
        found = replace(found, cost=round((time.process_time() - begin) / max(forward, 1e-6), 1))
        found = replace(found, value=_value_off(R, subject, own), mass=_input_off(R), cuts=_cuts_off(R))
        return _certified(found, R)
    except Exception as error:
        return _failed(found, error)


def _certified(found: CensusRow, R: Measure) -> CensusRow:
    """What the certificate says, beside the numbers."""
    check = R.check(strict=False)
    cut = 0.0 if check.cut_error is None else check.cut_error
    scale = max(1.0, *(max(row) for row in check.variation.values())) if check.variation else 1.0
    found = replace(found, cuts=max(found.cuts or 0.0, cut))
    if not all(check.ok):
        return replace(found, verdict="not accepted", words=check.verdict)
    bad = [what for what in ("value", "mass", "cuts") if getattr(found, what) > OFF * (1 if what == "value" else scale)]
    if bad:
        return replace(found, verdict="wrong", words=f"off: {', '.join(bad)}; {check.verdict}")
    return found


def _contrasted(found: CensusRow, subject: Subject) -> CensusRow:
    """The measure of the difference between two predictions, of near inputs if the others choose other things."""
    for reference, others in (("other", subject.others), *(("near", near) for near in nearer(subject))):
        now = _against(replace(found, reference=reference), subject, others)
        found = now if reference == "other" or now.contrast_verdict == "answered" else found
        if found.contrast_verdict != "refused":
            break
    return found


def _against(found: CensusRow, subject: Subject, others: Any) -> CensusRow:
    try:
        R = _measured(subject, against=others)
        off = max(_input_off(R), _cuts_off(R))
        check = R.check(strict=False)
        if check.cut_error is not None:
            off = max(off, check.cut_error)
    except Exception as error:
        failed = _failed(found, error)
        return replace(
            found, contrast_verdict=failed.verdict, contrast_words=failed.words, trace=failed.trace or found.trace
        )
    verdict = "answered" if off <= OFF and all(check.ok) else "not accepted" if not all(check.ok) else "wrong"
    said = "" if verdict == "answered" else check.verdict
    return replace(found, contrast=off, contrast_verdict=verdict, contrast_words=said)


def nearer(subject: Subject) -> list[Any]:
    """Inputs that are closer: numbers a part of the way to the others, or a single other token."""
    if any(t.is_floating_point() for t in tensors_in(subject.inputs)):
        ways = [functools.partial(_step, share) for share in (1e-2, 1e-4)]
    else:
        ways = [functools.partial(_one_token, k) for k in (-1, -2, 0)]
    return [_mixed(subject.inputs, subject.others, way) for way in ways]


def _step(share: float, x: Tensor, y: Tensor) -> Tensor:
    return x + share * (y - x) if x.is_floating_point() else x


def _one_token(k: int, x: Tensor, y: Tensor) -> Tensor:
    mixed = x.clone()
    mixed[..., k] = y[..., k]
    return mixed


def _mixed(one: Any, other: Any, way: Callable[[Tensor, Tensor], Tensor]) -> Any:
    """Inputs made of two, tensor by tensor."""
    if isinstance(one, Tensor):
        return way(one, other)
    if isinstance(one, dict):
        return {name: _mixed(value, other[name], way) for name, value in one.items()}
    if isinstance(one, list | tuple):
        return type(one)(_mixed(a, b, way) for a, b in zip(one, other, strict=True))
    return one


def _measured(subject: Subject, **more: Any) -> Measure:
    return measure(
        subject.model, subject.inputs, output=subject.output, batch_dim=subject.batch_dim, dtype=torch.float64, **more
    )


def _value_off(R: Measure, subject: Subject, own: Tensor) -> float:
    """How far the explained output is from the model's own, in its precision or, where that decides, in the measure's.

    A detector may choose other boxes in single precision than in double.
    """
    values = R.values(R.output)
    off = _share(values - own, own)
    if off > OFF:
        exact = own_output(copy.deepcopy(subject.model).double(), _doubled(subject.inputs), subject.output)
        off = _share(values - exact, exact)
    return off


def _doubled(value: Any) -> Any:
    return _mixed(value, value, lambda x, _: x.double() if x.is_floating_point() else x)


def _share(difference: Tensor, whole: Tensor) -> float:
    """The largest difference beside the largest entry."""
    return float(difference.abs().max()) / max(float(whole.abs().max()), 1e-9)


def _input_off(R: Measure) -> float:
    """How far the mass of the input cut is from 1."""
    return max(abs(m - 1) for m in R.check(strict=False).mass)


def _cuts_off(R: Measure) -> float:
    """How far masses are from 1 that are asked for, at layers that every walk passes, and at the output if few do."""
    names = [row.name for row in R.layers if row.is_cut]
    chosen = names[:: max(1, len(names) // CUTS)][:CUTS]
    off = [float((R(Layer(name).all) - 1).abs().max()) for name in chosen]
    return max(off, default=0.0)


def enliven(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights as large as those of a trained network: matrices that keep the size of what they read, biases not 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point() or not parameter.numel():
                continue
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            if parameter.ndim > 1 and float(parameter.std()) < 1:
                parameter.copy_(noise * parameter[0].numel() ** -0.5)
            elif parameter.ndim == 1 and not bool(parameter.any()):
                parameter.copy_(noise * 0.1)
    return model.eval()

"""The front of the room: a model, its inputs and the options of a measure, and the measure that is made of them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

from nrm.capture import ANEW, CallScript, Tape, capture_batch, contrast, script_of, uncollected
from nrm.errors import QuestionError, names_options, warn
from nrm.measure.average import Average
from nrm.measure.inner import Inner, Listener
from nrm.measure.measure import Measure
from nrm.measure.origin import Origin
from nrm.measure.reference import many, read_reference
from nrm.measure.sketch import refuse_unfit
from nrm.memory import KEPT, memory_bound
from nrm.rules import Between, Composite, Product, SoftmaxRule, coarse_tape, resolve
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
    against: Any = None,
    like: Measure | Average | CallScript | None = None,
) -> Measure:
    """The normalized relevance measure of a model's prediction for these inputs.

    ``inputs`` is a tensor, a tuple (positional arguments), a mapping (keyword arguments) or whatever the model takes;
    ``output`` picks what is explained (a key, or a function of the model's output); ``target`` is a class (by number,
    or by its name in ``labels={"output": [...]}``), one per sample, a tuple of indices (or a row of them per sample, as
    ``R.target`` has), a set of outputs, ``"logits"`` or ``"softmax"``, or None for each sample's top class.
    Of a language model None is the top token at the last position that is not padding (as ``attention_mask`` says),
    and ``(-1, token)`` a token there.
    ``rules`` is a composite's name, a rule, a mapping, or a rule between chosen layers (``nrm.Gradient()``); ``bias``
    is ``"ignore"`` or ``"input"``; ``zero`` says where the mass of columns without a sum goes. ``labels`` names the
    outputs and inputs wherever they are shown.
    ``memory`` bounds what answers may allocate (bytes, or text like "2 GiB"); activations that would take more than an
    eighth of it are dropped inside the blocks of the model, and computed again when they are read. ``progress`` shows a
    bar for long questions (True: for all, False: for none); a function is called with how much is done and the total
    (or None), again and again, and stops the question by raising.
    ``against`` is a reference, in the form of the inputs (one sample for all, or one per sample), or ``"zeros"`` or
    ``"blur"``: then the measure is that of the difference between the outputs here and there, exact at every step, and
    nothing is the share of a constant. A list of references gives their :class:`Average`.
    ``like`` is an earlier measure of the same model, on inputs of the same shapes: the model runs as ever, its calls
    are compared with those of that measure, and nothing has to be recorded as long as they are the same. If one
    differs (other control flow, another setting of the model), the pass is recorded, with a warning that says why.
    Numbers do not depend on it.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> R = measure(model, torch.ones(1, 4))
    >>> round(float(sum(R(part.all) for part in R.inputs)), 4)
    1.0
    """
    _check_options(bias, zero, normalize)
    bound = memory_bound(memory)
    between = rules if isinstance(rules, Between) else None
    if against is not None:
        _refuse_in_contrast(rules, bias, normalize)
    refuse_unfit(
        measure, model, inputs, {"output": output, "target": target, "rules": rules, "bias": bias, "zero": zero,
        "batch_dim": batch_dim, "dtype": dtype, "normalize": normalize, "memory": memory, "against": against},
    )  # fmt: skip
    script = _read_like(like)
    with uncollected():
        whole = against is not None
        room = None if between is not None else bound // KEPT // (2 if whole else 1)  # a contrast holds two runs
        tape = capture_batch(
            model, inputs, output=output, batch_dim=batch_dim, dtype=dtype, whole=whole, bound=room, like=script
        )  # fmt: skip
    if isinstance(like, Measure | Average):
        _tell(tape)
    origin = Origin(model, inputs, output, tape, every=between is not None)

    @uncollected()
    def made(tape: Tape) -> Measure:
        composite = resolve(rules, tape)
        _refuse_choices(composite, tape)
        chosen = composite.bias if bias == "auto" and tape.runs is None else "input" if bias == "auto" else bias
        spread = _is_word(target, "softmax")
        network = Network(tape, composite, bias=chosen, zero=zero, normalize=normalize, spread=spread)
        inner = Inner.of(network, target, labels=labels, memory=bound, progress=progress, origin=origin)
        return Measure(inner)

    @uncollected()
    def against_one(other: Any) -> Measure:
        fitted = read_reference(inputs, other, batch_dim)
        run = capture_batch(
            model, fitted, output=output, batch_dim=batch_dim, dtype=tape.dtype, whole=True, bound=room,
            like=script_of(tape),
        )  # fmt: skip
        return made(contrast(tape, run))

    if against is None:
        return made(tape if between is None else coarse_tape(tape, between, bound))
    references = many(against)
    if references is None:
        return against_one(against)
    # An average answers the questions of a measure; a union here would make every other caller ask which one it got.
    return cast("Measure", Average([against_one(other) for other in references]))


def _read_like(like: Any) -> CallScript | None:
    """The calls to follow, of whatever has them."""
    if isinstance(like, Average):
        like = like.contrasts[0]
    if isinstance(like, Measure):
        return script_of(like.inner.tape)
    if like is not None and not isinstance(like, CallScript):
        raise QuestionError("not a measure to be like", got=f"like={like!r}"[:80], expected="an earlier measure R")
    return like


def _tell(tape: Tape) -> None:
    """Warns if a measure was not made like the one that was given."""
    for note in tape.notes:
        if note.startswith(ANEW):
            warn(f"{note}: the measure of like= could not be followed")


def _refuse_choices(composite: Composite, tape: Tape) -> None:
    """Refuses rules for products and softmax in a contrast: there is nothing to choose, their split is exact."""
    if tape.runs is None:
        return
    stated = [c for _, c in composite.changes if isinstance(c, Product | SoftmaxRule)]
    stated += [] if composite.softmax is None else [composite.softmax]
    if stated:
        raise QuestionError(
            "products and softmax have no rule in a contrast: their split is exact", got=repr(stated[0]),
            expected="'exact', or rules for linear steps and sums", hint="rules='auto'",
        )  # fmt: skip


def _refuse_in_contrast(rules: Any, bias: str, normalize: bool | str) -> None:
    """Options that say nothing in a contrast: constants have no difference, and steps between layers no split."""
    if isinstance(rules, Between):
        raise QuestionError(
            "rules between layers have no contrast", got=repr(rules), expected="'exact', or a rule for linear steps",
            hint="nrm.IntegratedGradients has a baseline of its own",
        )  # fmt: skip
    if bias != "auto":
        raise QuestionError(
            "a contrast has no biases: constants do not differ", got=f"bias={bias!r}", hint="leave it out"
        )
    if normalize is not True:
        raise QuestionError("a contrast is normalized by its difference", got=f"normalize={normalize!r}",
                            hint="R.in_units(...) gives differences of the output")  # fmt: skip


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

"""What is refused, with a text that says why: models, options and inputs before the pass, the tape after it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nrm.capture.anatomy import Anatomy
from nrm.capture.ops import Unknown
from nrm.capture.samples import complete, release
from nrm.capture.tape import Node, Tape
from nrm.errors import CaptureError

MIXED = "samples of the batch are mixed"


def check_options(batch_dim: int | None, dtype: torch.dtype | None) -> None:
    """Refuses options without a meaning."""
    if dtype not in (None, torch.float32, torch.float64):
        raise CaptureError("not a precision for relevance", got=f"{dtype}", expected="torch.float32 or torch.float64")
    if batch_dim is not None and (type(batch_dim) is not int or batch_dim < 0):
        raise CaptureError("not a sample axis", got=f"batch_dim={batch_dim!r}", expected="0, 1, ... or None")


def check_model(anatomy: Anatomy) -> None:
    """Refuses what cannot be explained faithfully."""
    for path, module in anatomy.modules:
        where = f"{path or 'the model'} ({type(module).__name__})"
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                "scripted modules cannot be recorded", where=where, hint="pass the Python module it was made from"
            )
        if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.nn.quantized")):
            raise CaptureError("quantized modules are not supported", where=where, hint="explain the float model")
        random = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        if module.training and (random or isinstance(module, nn.modules.batchnorm._NormBase)):
            raise CaptureError(
                "the model is in training mode, where it has no fixed prediction",
                where=where, got="training=True", expected="eval mode", hint="model.eval()",
            )  # fmt: skip
    for name, p in anatomy.tensors:
        if p.is_meta:
            raise CaptureError(
                "a weight has no data (meta device)", where=name, expected="a model whose weights are loaded",
                hint="nrm.estimate(model, inputs) says what measuring it would take",
            )  # fmt: skip
        kind = _foreign(p)
        if kind and kind != "complex":  # constants, as pairs of real numbers
            raise CaptureError(f"{kind} weights are not supported", where=name, expected="dense real weights")


def _foreign(t: Tensor) -> str | None:
    """What is not a plain dense real tensor is, in a word."""
    if t.is_meta:
        return "meta"
    if t.is_quantized:
        return "quantized"
    if t.is_nested:
        return "nested"
    if t.layout is not torch.strided:
        return "sparse"
    return "complex" if t.is_complex() else None


def check_inputs(given: list[Tensor], anatomy: Anatomy, batch_dim: int | None) -> None:
    """Refuses inputs without a meaning: none, empty, not finite, on another device, without the sample axis."""
    if not given:
        raise CaptureError(
            "no tensor among the inputs", expected="a tensor, a tuple, a mapping or an object with tensors",
            hint="torch.as_tensor(inputs); of a text, tokenizer(text, return_tensors='pt')",
        )  # fmt: skip
    home = next((p.device for _, p in anatomy.parameters), None)
    for t in given:
        kind = _foreign(t)
        if kind:
            raise CaptureError(f"{kind} inputs are not supported", expected="a dense real tensor")
        if home is not None and t.device != home and t.ndim > 0:
            raise CaptureError(
                "input and model are on different devices", got=f"input on {t.device}, model on {home}",
                hint=f"inputs.to({str(home)!r})",
            )  # fmt: skip
        if t.numel() == 0:
            raise CaptureError("an input is empty", got=f"shape {tuple(t.shape)}")
        if t.is_floating_point() and not (bool(torch.isfinite(t.sum())) or bool(torch.isfinite(t).all())):
            bad = "NaN" if bool(torch.isnan(t).any()) else "inf"
            raise CaptureError(f"the input contains {bad}", got=f"{int((~torch.isfinite(t)).sum())} such entries")
    if batch_dim is not None and given[0].ndim <= batch_dim:
        raise CaptureError(
            f"the input has no axis {batch_dim} for samples", got=f"shape {tuple(given[0].shape)}",
            hint="batch_dim=None if the whole call is one sample, or x.unsqueeze(0)",
        )  # fmt: skip


def check_random(notes: list[str], anatomy: Anatomy, before: Tensor) -> None:
    """A forward pass that draws random numbers explains one draw only; in training mode that is an accident."""
    if torch.equal(before, torch.get_rng_state()):
        return
    training = next((path or "the model" for path, m in anatomy.modules if m.training), None)
    if training is not None:
        raise CaptureError(
            "the model is in training mode and draws random numbers, so that it has no fixed prediction",
            where=training, got="training=True", expected="eval mode", hint="model.eval()",
        )  # fmt: skip
    notes.append("the forward pass draws random numbers: this is the measure of one draw")


def check_finite(tape: Tape) -> None:
    """Refuses a network whose output is not finite, and names the first layer where it happens."""
    value = tape.nodes[tape.output].value
    if bool(torch.isfinite(value.sum())) or bool(torch.isfinite(value).all()):  # a sum is finite if everything is
        return
    first = next((n for n in tape.nodes if not bool(torch.isfinite(n.value).all())), tape.nodes[tape.output])
    bad = "NaN" if bool(torch.isnan(first.value).any()) else "inf"
    raise CaptureError(
        f"the network computes {bad}", where=f"first at layer {first.name!r}",
        hint="look at its weights and its input; try dtype=torch.float64 if values overflow",
    )  # fmt: skip


def check_samples(tape: Tape) -> None:
    """Each sample has its own measure, so samples must not meet on the way to the output (in a factor they may)."""
    if tape.batch == 1:
        return
    complete(tape.nodes)
    if _find_mixed(tape) is None:
        return
    release(tape.nodes, tape.output)
    node = _find_mixed(tape)
    if node is not None:
        raise CaptureError(
            MIXED, where=f"layer {node.name!r}",
            got=f"a tensor of shape {tuple(node.shape)} whose entries depend on several of {tape.batch} samples",
            expected="samples that do not depend on each other",
            hint="batch_dim=None explains the whole call as one sample; or another batch_dim, or a batch of one",
        )  # fmt: skip


def _find_mixed(tape: Tape) -> Node | None:
    """The last tensor on the way to the output in which not every entry is known to be of one sample."""
    seen = {tape.output}
    for node in reversed(tape.nodes[: tape.output + 1]):
        if node.index not in seen or isinstance(node.op, Unknown):
            continue
        if _is_mixed(node) or (node.index == tape.output and not node.has_samples):
            return node
        below = [tape.nodes[i] for i in node.inputs]
        clean = [parent for parent in below if not _is_mixed(parent)]
        seen.update(parent.index for parent in (clean if node.op.scales and clean else below))
    return None


def _is_mixed(node: Node) -> bool:
    return node.owner is not None and bool((node.owner < 0).any())

"""LRP and DeepLIFT with captum's calls: ``LRP(model).attribute(inputs, target=..., return_convergence_delta=...)``.

Attributions have the shapes of the inputs and sum to the explained output, up to what biases and inputs in the middle
receive: that is the convergence delta. Rules are an option here, not attributes of the user's modules; the default is
captum's (its epsilon rule, which is LRP-0 with biases as inputs). :class:`DeepLift` and :class:`DeepLiftShap` are
contrasts: they sum to the difference from the baselines, whatever ops the model has.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from nrm.capture import tensors_in
from nrm.compat.options import read_options
from nrm.errors import QuestionError
from nrm.measure import Average, Loop, Measure
from nrm.questions import Layer


class LRP:
    """Relevance of the inputs in units of the output: the explained output times the measure's shares.

    ``options`` are those of :func:`nrm.measure`: rules, bias, dtype and so on.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False))
    >>> attributions, delta = LRP(model).attribute(torch.ones(3, 4), target=1, return_convergence_delta=True)
    >>> attributions.shape, bool(torch.allclose(attributions.sum(1), model(torch.ones(3, 4))[:, 1]))
    (torch.Size([3, 4]), True)
    """

    def __init__(self, model: nn.Module, *, rules: Any = "lrp-0", **options: Any) -> None:
        _refuse_rules_on_modules(model)
        self.model = self.forward_func = model
        self._loop = Loop()
        self.options = read_options({"rules": rules, **options})

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"{type(self).__name__}({type(self.model).__name__}{options})"

    def attribute(
        self, inputs: Tensor | tuple[Tensor, ...], target: Any = None, additional_forward_args: Any = None,
        return_convergence_delta: bool = False, verbose: bool = False,
    ) -> Any:  # fmt: skip
        """Attributions of the shapes of the inputs, a tuple for a tuple; with the delta of every sample if asked for.

        ``target`` is a class, one per sample (list or tensor), a tuple for outputs with more axes, or a list of tuples;
        None if the output has one number per sample. ``additional_forward_args`` follow the inputs in the call of the
        model and have no attributions. ``verbose`` prints the measure.
        """
        _refuse_integers(inputs, "LayerLRP(model, model.embedding) for tokens")
        R = self._measure(inputs, target, additional_forward_args)
        names = _input_names(inputs, additional_forward_args)
        found = tuple(R.in_units(R[name]) for name in names)
        attributions = found if isinstance(inputs, tuple) else found[0]
        if verbose:
            print(R)
        if not return_convergence_delta:
            return attributions
        return attributions, self.compute_convergence_delta(attributions, R.value)

    def has_convergence_delta(self) -> bool:
        """Always: what the inputs do not receive."""
        return True

    def compute_convergence_delta(self, attributions: Tensor | tuple[Tensor, ...], output: Tensor) -> Tensor:
        """The explained output minus the sum of all attributions, per sample."""
        return output.flatten() - _sums(_as_tuple(attributions))

    def _measure(self, inputs: Any, target: Any, more: Any, **given: Any) -> Measure:
        for tensor in _as_tuple(inputs) or (None,):
            if not isinstance(tensor, Tensor):
                raise QuestionError(
                    "inputs are a tensor, or a tuple of tensors", got=type(tensor).__name__,
                    expected="what relevance is attributed to", hint="additional_forward_args for everything else",
                )  # fmt: skip
        whole = (*_as_tuple(inputs), *_as_tuple(more))
        R = self._loop.measure(self.model, whole, target=_read_target(target), **self.options, **given)
        outputs = R.values(R.output)
        if target is None and outputs[0].numel() > 1:
            raise QuestionError(
                "a target is needed", got=f"outputs of shape {tuple(outputs.shape[1:])} and target=None",
                expected="a class, or one per sample", hint="target=model(inputs).argmax(1)",
            )  # fmt: skip
        return R


class LayerLRP(LRP):
    """Layer-wise relevance of the output (or the input) of layers: a module of the model, its name, or a list of them.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> LayerLRP(model, model[1]).attribute(torch.ones(3, 4), target=1).shape
    torch.Size([3, 8])
    """

    def __init__(
        self, model: nn.Module, layer: nn.Module | str | Sequence[nn.Module | str], *, rules: Any = "lrp-0",
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(model, rules=rules, **options)
        self.layer = layer
        self._names = [_name_of(model, one) for one in (layer if isinstance(layer, list | tuple) else [layer])]

    def attribute(  # type: ignore[override]
        self, inputs: Tensor | tuple[Tensor, ...], target: Any = None, additional_forward_args: Any = None,
        return_convergence_delta: bool = False, attribute_to_layer_input: bool = False, verbose: bool = False,
    ) -> Any:  # fmt: skip
        """Attributions of the layer's shape, and deltas if asked for; lists of both for a list of layers."""
        R = self._measure(inputs, target, additional_forward_args)
        layers = [R[Layer(name).input if attribute_to_layer_input else name] for name in self._names]
        found = [R.in_units(layer) for layer in layers]
        deltas = [self.compute_convergence_delta(one, R.value) for one in found]
        if verbose:
            print(R)
        many = isinstance(self.layer, list | tuple)
        attributions, delta = (found, deltas) if many else (found[0], deltas[0])
        return (attributions, delta) if return_convergence_delta else attributions


class DeepLift(LRP):
    """What inputs contribute to the difference of the output from that of a baseline, in units of the output.

    The multipliers of ReLU networks are DeepLIFT's (its rescale rule), and every other op (norms, softmax, products,
    recurrent cells) has its exact split, so that attributions sum to ``f(inputs) - f(baselines)``.
    ``options`` are those of :func:`nrm.measure`.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    >>> x, other = torch.randn(3, 4), torch.randn(1, 4)
    >>> attributions = DeepLift(model).attribute(x, other, target=1)
    >>> bool(torch.allclose(attributions.sum(1), (model(x) - model(other))[:, 1], atol=1e-5))
    True
    """

    def __init__(
        self, model: nn.Module, multiply_by_inputs: bool = True, *, rules: Any = "exact", **options: Any
    ) -> None:
        super().__init__(model, rules=rules, **options)
        if multiply_by_inputs is not True:
            raise QuestionError(
                "attributions are contributions, not multipliers", got=f"multiply_by_inputs={multiply_by_inputs!r}",
                expected="True", hint="attributions / (inputs - baselines), where they differ",
            )  # fmt: skip

    def attribute(  # type: ignore[override]
        self, inputs: Tensor | tuple[Tensor, ...], baselines: Any = None, target: Any = None,
        additional_forward_args: Any = None, return_convergence_delta: bool = False,
    ) -> Any:  # fmt: skip
        """Attributions of the shapes of the inputs, a tuple for a tuple; with the delta of every sample if asked for.

        ``baselines`` are like the inputs (a batch of one is for all samples), or numbers for all their entries; None
        is 0. ``additional_forward_args`` are the same in both runs, and have no attributions.
        """
        _refuse_integers(inputs, "the embeddings as inputs, for tokens")
        given = _as_tuple(inputs)
        others = (*_filled(given, baselines), *_as_tuple(additional_forward_args))
        R = self._measure(inputs, target, additional_forward_args, against=others)
        found = tuple(R.in_units(R[name]) for name in _input_names(inputs, additional_forward_args))
        attributions = found if isinstance(inputs, tuple) else found[0]
        return (attributions, _sums(found) - R.value) if return_convergence_delta else attributions

    def compute_convergence_delta(  # type: ignore[override]
        self, attributions: Tensor | tuple[Tensor, ...], start_point: Any, end_point: Any, target: Any = None,
        additional_forward_args: Any = None,
    ) -> Tensor:  # fmt: skip
        """The sum of all attributions minus the difference of the outputs at the two points, per sample."""
        given, more = _as_tuple(end_point), additional_forward_args
        R = self._measure(end_point, target, more, against=(*_filled(given, start_point), *_as_tuple(more)))
        return _sums(_as_tuple(attributions)) - R.value


class DeepLiftShap(DeepLift):
    """The mean of :class:`DeepLift` over several baselines: attributions sum to ``f(inputs) - mean f(baselines)``.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    >>> x, others = torch.randn(3, 4), torch.randn(5, 4)
    >>> attributions, delta = DeepLiftShap(model).attribute(x, others, target=1, return_convergence_delta=True)
    >>> attributions.shape, delta.shape
    (torch.Size([3, 4]), torch.Size([15]))
    """

    def attribute(  # type: ignore[override]
        self, inputs: Tensor | tuple[Tensor, ...], baselines: Any, target: Any = None,
        additional_forward_args: Any = None, return_convergence_delta: bool = False,
    ) -> Any:  # fmt: skip
        """Attributions of the shapes of the inputs, a tuple for a tuple.

        ``baselines`` have samples of their own on axis 0, or are a function that makes them (of the inputs, if it takes
        an argument). Deltas are those of every sample with every baseline, ``(samples * baselines,)``.
        """
        _refuse_integers(inputs, "the embeddings as inputs, for tokens")
        made = _as_tuple(_made(baselines, inputs))
        counts = {len(one) if isinstance(one, Tensor) and one.ndim else 0 for one in made}
        if len(counts) != 1 or 0 in counts:
            raise QuestionError(
                "baselines are samples", got=", ".join(type(one).__name__ for one in made) or "none",
                expected="tensors with as many baselines each, on axis 0", hint="DeepLift(model) for a single one",
            )  # fmt: skip
        more = _as_tuple(additional_forward_args)
        others = [(*(one[i : i + 1] for one in made), *more) for i in range(counts.pop())]
        R = cast("Average", self._measure(inputs, target, additional_forward_args, against=others))
        each = [R.each_reference(R[name]) for name in _input_names(inputs, additional_forward_args)]
        found = tuple(one.mean(0) for one in each)
        attributions = found if isinstance(inputs, tuple) else found[0]
        if not return_convergence_delta:
            return attributions
        sums = torch.stack([one.flatten(2).sum(2) for one in each]).sum(0)  # references x samples
        return attributions, (sums - torch.stack([one.value for one in R.contrasts])).T.flatten()


def _refuse_integers(inputs: Any, instead: str) -> None:
    if any(isinstance(tensor, Tensor) and not tensor.is_floating_point() for tensor in _as_tuple(inputs)):
        raise QuestionError(
            "integers have no attributions", got="an input of integers", expected="float tensors",
            hint=f"{instead}; additional_forward_args for other arguments",
        )  # fmt: skip


def _filled(inputs: tuple[Any, ...], baselines: Any) -> tuple[Any, ...]:
    """A baseline for every input: numbers stand for tensors of them, and nothing for zeros."""
    given = (0,) * len(inputs) if baselines is None else _as_tuple(baselines)
    if len(given) != len(inputs):
        raise QuestionError(
            "every input has a baseline", got=f"{len(given)} baselines", expected=f"{len(inputs)}, one for each input"
        )
    return tuple(
        torch.full_like(one, float(other)) if isinstance(one, Tensor) and isinstance(other, int | float) else other
        for one, other in zip(inputs, given, strict=True)
    )


def _made(baselines: Any, inputs: Any) -> Any:
    """Baselines, from a function if they are one."""
    if isinstance(baselines, Tensor) or not callable(baselines):
        return baselines
    return baselines(inputs) if inspect.signature(baselines).parameters else baselines()


def _sums(attributions: tuple[Tensor, ...]) -> Tensor:
    """The sum of all attributions of every sample."""
    return torch.stack([part.flatten(1).sum(1) for part in attributions]).sum(0)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return value if isinstance(value, tuple) else (value,)


def _input_names(inputs: Any, more: Any) -> list[str]:
    """The names of the inputs as layers; a single tensor in the whole call is just the input."""
    count = len(_as_tuple(inputs))
    alone = count + len(tensors_in(_as_tuple(more))) == 1
    return ["input"] if alone else [f"input[{i}]" for i in range(count)]


def _read_target(target: Any) -> Any:
    """The target in the measure's form: lists of tuples become tuples of lists, single numbers are for all samples."""
    if isinstance(target, Tensor | np.ndarray):
        values = torch.as_tensor(target)
        return values.reshape(()) if values.numel() == 1 else values
    if isinstance(target, list) and any(isinstance(one, tuple) for one in target):
        if len({len(one) if isinstance(one, tuple) else None for one in target}) > 1:
            raise QuestionError("targets have different forms", got=repr(target)[:120], expected="tuples of one length")
        return tuple(list(indices) for indices in zip(*target, strict=True))
    return target


def _refuse_rules_on_modules(model: nn.Module) -> None:
    """Rules that a user has put on modules for captum would be passed over without a word."""
    if not isinstance(model, nn.Module):
        raise QuestionError("not a model", got=type(model).__name__, expected="a torch.nn.Module")
    for name, module in model.named_modules():
        if "rule" in vars(module):
            raise QuestionError(
                "rules on modules are not read", where=f"module {name!r}", got=f"rule={vars(module)['rule']!r}"[:80],
                expected="rules as an option", hint="del module.rule; LRP(model, rules={'conv*': nrm.Gamma(0.25)})",
            )  # fmt: skip


def _name_of(model: nn.Module, layer: Any) -> str:
    if isinstance(layer, str):
        return layer
    name = next((name for name, module in model.named_modules() if module is layer), "")
    if not name:
        raise QuestionError(
            "not a layer of this model", got=type(layer).__name__, expected="one of its modules, or the name of one",
            hint="dict(model.named_modules()) lists them",
        )  # fmt: skip
    return name

"""Models by name: torchvision's, timm's, Hugging Face's, and what a function of the user's makes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nrm.cli.hugging import load_hugging
from nrm.cli.imported import KINDS, describe, import_named, using
from nrm.cli.names import read_labels
from nrm.cli.transforms import Transform, plain, read_transform
from nrm.cli.weights import fit_weights, read_weights
from nrm.errors import InputError, NrmError

RANDOM = "none"
"""What says that weights are drawn at random."""


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model with everything that a command needs beside it.

    ``transform`` makes a sample of an image, ``tokenizer`` of a text; ``labels`` are the names of its outputs, and
    ``notes`` what a person should know about how it was made.
    """

    name: str
    model: nn.Module
    transform: Transform | None = None
    tokenizer: Any = None
    labels: Sequence[str] | Mapping[int, str] | None = None
    weights: str | None = None
    notes: tuple[str, ...] = ()
    tokens: bool = False

    def describe(self) -> dict[str, Any]:
        """Its facts as plain data."""
        return {
            "name": self.name, "weights": self.weights, "parameters": sum(p.numel() for p in self.model.parameters()),
            "transform": None if self.transform is None else self.transform.text,
        }  # fmt: skip


def load_model(
    name: str, *, weights: str | None = None, classes: int | None = None, labels: str | Path | None = None,
    transform: str | None = None, device: str = "cpu",
) -> LoadedModel:  # fmt: skip
    """The model that a name says, ready to be explained.

    ``weights`` is ``"DEFAULT"`` (which may be downloaded), ``"none"`` (drawn at random) or a file; a head whose weights
    have another width gets that width. ``classes`` is the number of outputs, ``labels`` a file with their names,
    ``transform`` one of ``plain`` and ``imagenet`` or a function as ``package.module:function``.

    >>> load_model("nrm.demo:digits").transform.text
    'that of nrm.demo:digits'
    """
    kind, _, rest = name.partition(":")
    if not kind or not rest:
        raise InputError("not a model", got=name or "nothing", expected=KINDS)
    if classes is not None and classes < 1:
        raise InputError("not a number of classes", got=str(classes), expected="at least 1")
    load: Callable[[str, str | None, int | None], LoadedModel]
    load = {"torchvision": _torchvision, "timm": _timm, "hf": _hugging}.get(kind, _made)
    loaded = load(name if load is _made else rest, weights, classes)
    loaded = replace(loaded, name=name, model=_on(loaded.model.eval(), device))
    if labels is not None:
        loaded = replace(loaded, labels=read_labels(Path(labels)))
    if transform is not None:
        loaded = replace(loaded, transform=read_transform(transform, loaded.model))
    elif loaded.transform is None and not loaded.tokens:
        used = plain(loaded.model)
        note = f"no transform came with the model; images are used {used.text.removeprefix('plain: ')} (--transform)"
        loaded = replace(loaded, transform=used, notes=(*loaded.notes, note))
    return loaded


def _on(model: nn.Module, device: str) -> nn.Module:
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise InputError("the device cannot be used", got=f"{device}: {str(error).splitlines()[0][:120]}") from error


# ---- where models come from ------------------------------------------------------------------------------------


def _torchvision(name: str, weights: str | None, classes: int | None) -> LoadedModel:
    with using("vision", f"torchvision:{name}"):
        from torchvision.models import get_model, get_model_weights, list_models
    known = list_models()
    if name not in known:
        raise _unknown("torchvision", name, known)
    default = get_model_weights(name).DEFAULT
    given = weights or "DEFAULT"
    options = {} if classes is None else {"num_classes": classes}
    preset = default.transforms()
    transform = Transform(preset, f"that of {default} ({_sizes(preset)})")
    if given == "DEFAULT":
        _refuse_classes(classes, len(default.meta["categories"]))
        model = _fetched(lambda: get_model(name, weights=default), name)
        return LoadedModel(name, model, transform, labels=default.meta["categories"], weights=str(default))
    return _with_weights(name, get_model(name, weights=None, **options), transform, given, classes)


def _timm(name: str, weights: str | None, classes: int | None) -> LoadedModel:
    with using("timm", f"timm:{name}"):
        import timm
        import timm.data
    data: Any = timm.data
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    given = weights or "DEFAULT"
    options: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    if given == "DEFAULT":
        _refuse_classes(classes, None)
        model = _fetched(lambda: timm.create_model(name, pretrained=True), name)
    else:
        model = timm.create_model(name, pretrained=False, **options)
    config = data.resolve_model_data_config(model)
    transform = Transform(data.create_transform(**config), f"timm's, to {'x'.join(map(str, config['input_size']))}")
    if given == "DEFAULT":
        return LoadedModel(name, model, transform, weights=given)
    return _with_weights(name, model, transform, given, classes)


def _hugging(name: str, weights: str | None, classes: int | None) -> LoadedModel:
    if weights is not None or classes is not None:
        raise InputError("a Hugging Face model brings its weights and classes", got="--weights or --classes")
    found = load_hugging(name)
    return LoadedModel(
        name, found.model, found.transform, found.tokenizer, found.labels, name, found.notes, found.tokens
    )


def _made(name: str, weights: str | None, classes: int | None) -> LoadedModel:
    if classes is not None:
        raise InputError("a factory decides on its classes", got=f"--classes {classes}", where=name)
    factory = import_named(name, "model")
    made = factory if isinstance(factory, nn.Module) else _called(factory, name)
    parts = made if isinstance(made, tuple) else (made,)
    model, transform, labels = (*parts, None, None)[:3]
    if not isinstance(model, nn.Module) or len(parts) > 3 or not (transform is None or callable(transform)):
        raise InputError(
            "not a model", where=name, got=", ".join(type(part).__name__ for part in parts),
            expected="a torch.nn.Module, or (model, transform, labels)",
        )  # fmt: skip
    notes = ("the model was in training mode; eval() was called",) if model.training else ()
    used = None if transform is None else Transform(transform, f"that of {name}")
    loaded = LoadedModel(name, model, used, labels=labels, notes=notes)
    if weights in (None, RANDOM):
        return loaded
    if weights == "DEFAULT":
        raise InputError("only torchvision and timm have default weights", got="--weights DEFAULT", where=name)
    changes = fit_weights(model, read_weights(Path(str(weights))), Path(str(weights)))
    return replace(loaded, weights=str(weights), notes=(*notes, *changes))


def _called(factory: Any, name: str) -> Any:
    if not callable(factory):
        expected = "a function that makes a model, or a model"
        raise InputError("not a model", where=name, got=type(factory).__name__, expected=expected)
    try:
        return factory()
    except NrmError:
        raise
    except Exception as error:  # code of the user's can fail in any way
        raise InputError("the model cannot be made", where=name, got=describe(error)) from error


def _with_weights(name: str, model: nn.Module, transform: Transform, given: str, classes: int | None) -> LoadedModel:
    """A model that was made without weights, with those of a file, or with none."""
    if given == RANDOM:
        return LoadedModel(
            name, model, transform, weights=None, notes=("the weights are random: this network knows nothing",)
        )
    path = Path(given)
    notes = fit_weights(model, read_weights(path), path)
    outputs = _outputs(model)
    if classes is not None and outputs is not None and outputs != classes:
        got = f"--classes {classes}"
        raise InputError("the weights have another number of classes", where=path.name, got=got, expected=str(outputs))
    return LoadedModel(name, model, transform, weights=given, notes=tuple(notes))


def _outputs(model: nn.Module) -> int | None:
    """How many outputs the last dense layer or convolution has."""
    last = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)][-1:]
    return int(last[0].weight.shape[0]) if last and isinstance(last[0].weight, Tensor) else None


def _fetched(make: Callable[[], nn.Module], name: str) -> nn.Module:
    try:
        return make()
    except Exception as error:  # a download can fail in any way
        raise NrmError(
            "the weights cannot be had", where=name, got=describe(error),
            hint="--weights FILE for a file of yours, --weights none for the network without training",
        ) from error  # fmt: skip


def _refuse_classes(classes: int | None, known: int | None) -> None:
    if classes is not None and classes != known:
        hint = "--weights FILE, or --weights none"
        raise InputError("the default weights have their own classes", got=f"--classes {classes}", hint=hint)


def _unknown(where: str, name: str, known: Sequence[str]) -> InputError:
    near = difflib.get_close_matches(name, known, n=3)
    return InputError(f"{where} has no such model", got=name, hint=", ".join(near) or None)


def _sizes(preset: Any) -> str:
    sizes = [
        f"{word} {getattr(preset, f'{word}_size')[0]}" for word in ("resize", "crop") if hasattr(preset, f"{word}_size")
    ]
    return ", ".join(sizes) or type(preset).__name__

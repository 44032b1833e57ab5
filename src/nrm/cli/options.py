"""Options that several commands share, each explained once."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import torch

from nrm.cli.models import KINDS, Loaded, load_model
from nrm.cli.notation import read_target
from nrm.errors import InputError
from nrm.extras import extra

with extra("cli", "the command line"):
    import typer

DTYPES = {"float32": torch.float32, "float64": torch.float64}

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help=KINDS)]
Inputs = Annotated[list[str], typer.Argument(metavar="INPUT", help="Images, folders, .npy or .safetensors, texts.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on the standard output.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost; write nothing.")]


@dataclass(frozen=True)
class ModelOptions:
    """How a model is made."""

    weights: Annotated[str | None, typer.Option(metavar="DEFAULT|none|FILE", help="Weights: .safetensors, .pt.")] = None
    classes: Annotated[int | None, typer.Option(help="Number of outputs; a file of weights knows it by itself.")] = None
    labels: Annotated[Path | None, typer.Option(help="File with the names of the classes: lines, or JSON.")] = None
    transform: Annotated[
        str | None, typer.Option(metavar="NAME", help="plain, imagenet, or package.module:function.")
    ] = None
    device: Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, cuda:1 ...")] = "cpu"

    def load(self, name: str, **more: Any) -> Loaded:
        """The model."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        return load_model(name, **{**options, **more})


@dataclass(frozen=True)
class MeasureOptions:
    """How a prediction is measured."""

    target: Annotated[
        str | None, typer.Option(help="What is explained: a class, -1,TOKEN, logits, softmax; else the top one.")
    ] = None
    rules: Annotated[str, typer.Option(help="A composite by name.")] = "auto"
    bias: Annotated[str, typer.Option(help="ignore, input, or auto: as the rules say.")] = "auto"
    zero: Annotated[str, typer.Option(help="Where mass without a way goes: sink, uniform, error.")] = "sink"
    dtype: Annotated[str | None, typer.Option(metavar="float32|float64", help="Precision of relevance.")] = None

    def arguments(self, loaded: Loaded) -> dict[str, Any]:
        """The arguments of :func:`nrm.measure`."""
        if self.dtype is not None and self.dtype not in DTYPES:
            raise InputError("no such precision", got=f"--dtype {self.dtype}", expected=" or ".join(DTYPES))
        return {
            "target": read_target(self.target, loaded.labels, loaded.tokens),
            "rules": self.rules, "bias": self.bias, "zero": self.zero,
            "dtype": None if self.dtype is None else DTYPES[self.dtype],
        }  # fmt: skip


def spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same command with options one by one, where it takes groups of them."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    own = signature(command).parameters.values()
    options = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=_grouped(field.type, kind))
        for kind in groups.values()
        for field in fields(kind)
    ]

    @wraps(command)
    def run(**given: Any) -> Any:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)}) for name, kind in groups.items()
        }
        return command(**given, **made)

    kept = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in own if p.name not in groups]
    run.__signature__ = signature(command).replace(parameters=[*kept, *options])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*kept, *options)}
    del run.__wrapped__
    return run


def _grouped(annotation: Any, kind: Any) -> Any:
    """The same option, listed under what its group is about."""
    value, option = get_args(annotation)
    option = copy(option)
    option.rich_help_panel = kind.__doc__.splitlines()[0].rstrip(".")
    return Annotated[value, option]

"""Options that several commands share, each explained once. Nothing here needs torch, so that help comes at once."""

from collections.abc import Callable
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_args

from nrm.cli.imported import KINDS
from nrm.extras import extra

with extra("cli", "the command line"):
    import typer
    from typer.models import ArgumentInfo

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help=KINDS)]
Inputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT", help="Images, folders, .npy or .safetensors, texts; - is standard input."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on the standard output.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost; write nothing.")]
Batch = Annotated[
    bool | None, typer.Option("--batch/--single", help="Whether tensor files have samples first; else by their axes.")
]
Nodes = Annotated[int, typer.Option(help="Number of clusters or groups of a layer.")]
Out = Annotated[Path | None, typer.Option(help="report.html: one page; else a folder of results; - prints the page.")]
Port = Annotated[int | None, typer.Option(help="Port on this machine; else a free one.")]
Browser = Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")]
ClassNames = Annotated[
    Path | None,
    typer.Option(help="For --target label: what the data calls the outputs; lines in their order, or JSON."),
]
MaxErrors = Annotated[int, typer.Option(min=0, help="Samples that may fail; they are left out and listed.")]


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


@dataclass(frozen=True)
class MeasureOptions:
    """How a prediction is measured."""

    target: Annotated[
        str | None, typer.Option(help="What is explained: a class, -1,TOKEN, logits, softmax; else the top one.")
    ] = None
    rules: Annotated[str, typer.Option(help="A composite by name, or a rule: Gamma(0.25), ZPlus.")] = "auto"
    bias: Annotated[str, typer.Option(help="ignore, input, or auto: as the rules say.")] = "auto"
    zero: Annotated[str, typer.Option(help="Where mass without a way goes: sink, uniform, error.")] = "sink"
    dtype: Annotated[str | None, typer.Option(metavar="float32|float64", help="Precision of relevance.")] = None
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT|zeros|blur",
            help="A reference: the difference from its output is explained. Several: query, flows, layers, check.",
        ),
    ] = None


@dataclass(frozen=True)
class LookOptions:
    """What an explanation shows."""

    layer: Annotated[
        list[str] | None, typer.Option("--layer", "-l", help="Shown layers: features.28, features.28.clusters ...")
    ] = None
    nodes: Annotated[int, typer.Option(help="How many blocks of a layer are shown by themselves.")] = 8
    flows: Annotated[int, typer.Option(help="How many chains through all layers are listed.")] = 6
    fast: Annotated[
        bool, typer.Option("--fast", help="What comes at once: the decision and the heat map (a page: ribbons).")
    ] = False


@dataclass(frozen=True)
class JobOptions:
    """How a data set is worked off."""

    k: Annotated[int, typer.Option("-k", help="How many samples of every block are kept.")] = 40
    store: Annotated[Path | None, typer.Option(help="Folder for results; a stopped job goes on there.")] = None
    weight: Annotated[str, typer.Option(help="How samples are compared: logit, softmax, none.")] = "logit"
    engine: Annotated[str, typer.Option(help="local, or ray.")] = "local"
    workers: Annotated[int | None, typer.Option(min=1, help="Processes, or actors of Ray.")] = None
    batch_size: Annotated[int, typer.Option(help="Samples that are explained together.")] = 16
    shard_size: Annotated[int, typer.Option(help="Samples that are one unit of work.")] = 256
    max_errors: MaxErrors = 0


def spread(kind: type[Any], home: str) -> Callable[..., Any]:
    """The function of a command whose parameters are the fields of what it is asked, groups of them one by one.

    The function of the same name in the module ``home`` answers; it is imported when it is called, as it needs torch.
    """
    ordered = sorted(fields(kind), key=lambda field: _is_shared(field, kind))
    own = [field for field in ordered if not is_dataclass(field.type)]
    groups: dict[str, Any] = {field.name: field.type for field in ordered if is_dataclass(field.type)}

    command = kind.__name__.removesuffix("Command").lower()

    def run(**given: Any) -> Any:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return getattr(import_module(home), command)(kind(**given, **made))

    options = [_parameter(field, field.type) for field in own]
    options += [_parameter(field, _grouped(field.type, g)) for g in groups.values() for field in fields(g)]
    run.__name__, run.__doc__ = command, kind.__doc__
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in options}
    return run


def _is_shared(field: Field[Any], kind: type[Any]) -> bool:
    """Whether it is listed after what is special about a command; arguments always keep their order."""
    is_argument = any(isinstance(part, ArgumentInfo) for part in get_args(field.type))
    return field.name not in kind.__annotations__ and not is_argument


def _parameter(field: Field[Any], annotation: Any) -> Parameter:
    default = Parameter.empty if field.default is MISSING else field.default
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _grouped(annotation: Any, kind: Any) -> Any:
    """The option, listed under what its group is about."""
    value, option = get_args(annotation)
    option = copy(option)
    option.rich_help_panel = kind.__doc__.splitlines()[0].rstrip(".")
    return Annotated[value, option]

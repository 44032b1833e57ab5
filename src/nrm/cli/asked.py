"""What every command is asked, as a value: its arguments and options, and its help. Nothing here needs torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from nrm.cli.options import (
    AsJson,
    Batch,
    Browser,
    ClassNames,
    DryRun,
    Inputs,
    JobOptions,
    LookOptions,
    MaxErrors,
    MeasureOptions,
    ModelName,
    ModelOptions,
    Nodes,
    Out,
    Port,
)
from nrm.extras import extra

with extra("cli", "the command line"):
    import typer

EXPERIMENTS = (
    "mlp, vgg-channels, vgg-clusters, additive, rnn, gnn, gnn-bonds, rules, contrast, circuits, image-circuits"
)
EFFORT = 300.0


@dataclass(frozen=True, kw_only=True)
class OfModel:
    """What every command about a model is asked."""

    model: ModelName
    json: AsJson = False
    options: ModelOptions = field(default_factory=ModelOptions)
    settings: MeasureOptions = field(default_factory=MeasureOptions)


@dataclass(frozen=True, kw_only=True)
class OfInputs(OfModel):
    """What every command about inputs of a model is asked."""

    given: Inputs
    batch: Batch = None


@dataclass(frozen=True)
class DemoCommand:
    """Explain a decision of a small network that the package carries; no download."""

    sample: Annotated[int, typer.Option(help="Which digit is explained: 0 to 296.")] = 12
    out: Out = None
    images: Annotated[
        Path | None, typer.Option(help="Write the digits as images into this folder, to try other commands on.")
    ] = None
    page: Annotated[bool, typer.Option("--explore", help="Look at the digits in the explorer.")] = False
    port: Port = None
    browser: Browser = True
    dry: DryRun = False
    json: AsJson = False
    look: LookOptions = field(default_factory=LookOptions)
    settings: MeasureOptions = field(default_factory=MeasureOptions)


@dataclass(frozen=True, kw_only=True)
class LayersCommand(OfModel):
    """The layers of a network: name, shape, channel axis, kind, whether every walk passes it, and its mass."""

    given: Annotated[list[str] | None, typer.Argument(metavar="[INPUT]", help="An input, for the masses.")] = None
    shape: Annotated[str | None, typer.Option(help="Shape of a made-up input where none is given: 3,224,224.")] = None
    find: Annotated[str | None, typer.Option(help="Only names with this text in them, or that match * and ?.")] = None
    blocks: Annotated[bool, typer.Option("--blocks", help="The largest parts only, in a dozen rows or so.")] = False


@dataclass(frozen=True, kw_only=True)
class ExplainCommand(OfInputs):
    """What was decided, on what evidence, through which layers, and whether that can be trusted."""

    out: Out = None
    dry: DryRun = False
    look: LookOptions = field(default_factory=LookOptions)


@dataclass(frozen=True, kw_only=True)
class ReportCommand(OfInputs):
    """An explanation as a page of its own; of several inputs, a folder with a page for each."""

    out: Annotated[Path, typer.Option(help="The page; a folder for several inputs; - prints the page.")] = Path(
        "report.html"
    )
    look: LookOptions = field(default_factory=LookOptions)


@dataclass(frozen=True, kw_only=True)
class HeatmapsCommand(OfModel):
    """Heat maps of many images, as pictures and numbers in a folder; a stopped job goes on there."""

    data: Annotated[Path, typer.Argument(metavar="DATA", help="A folder of images, or a file of tensors.")]
    out: Annotated[Path, typer.Option(help="Folder for the maps.")] = Path("heatmaps")
    memory: Annotated[str, typer.Option(help='Memory for a batch, such as "2 GiB".')] = "auto"
    batch_size: Annotated[int | None, typer.Option(help="Samples that are explained together; else by memory.")] = None
    max_errors: MaxErrors = 0
    class_names: ClassNames = None


@dataclass(frozen=True, kw_only=True)
class FlowsCommand(OfInputs):
    """The combinations of blocks, one of every layer, through which most of the decision flowed; exact."""

    layer: Annotated[
        list[str], typer.Option("--layer", "-l", help="A layer, features.26, .positions, .clusters, or a set.")
    ]
    k: Annotated[int, typer.Option("-k", help="How many flows.")] = 10
    sign: Annotated[str, typer.Option(help="+ the largest, - the most negative, abs of either sign.")] = "+"
    by: Annotated[
        str, typer.Option(help="Rank by relevance, lift (over what independent ones share), or excess (beyond it).")
    ] = "relevance"
    least: Annotated[
        float | None, typer.Option(help="With --by: flows with less relevance are left out; 0.001 for lift.")
    ] = None
    effort: Annotated[float, typer.Option(help="Forward passes that a search may take.")] = EFFORT
    nodes: Nodes = 8
    dry: DryRun = False


@dataclass(frozen=True, kw_only=True)
class OfFormula:
    """The argument of a query that comes before its model: fields of the last base are the first."""

    formula: Annotated[str, typer.Argument(help='Such as "fin AND NOT net".')]


@dataclass(frozen=True, kw_only=True)
class QueryCommand(OfInputs, OfFormula):
    """How much of the decision flowed as a formula says: NOT, AND, XOR, OR, IMPLIES of named sets."""

    named: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="A named set: fin=features.28.channel(12).")
    ] = None
    sets: Annotated[Path | None, typer.Option(help="File with named sets: lines as in --set, or JSON.")] = None
    dry: DryRun = False


@dataclass(frozen=True, kw_only=True)
class CheckCommand(OfInputs):
    """The certificate: does mass hold, and how far may the numbers be trusted? The exit code is 1 if they may not."""

    dry: DryRun = False


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand(OfInputs):
    """How well relevance agrees with what happens when blocks are removed: correlation with joint contributions."""

    layer: Annotated[
        list[str], typer.Option("--layer", "-l", help="A layer whose blocks are removed, features.28; two for pairs.")
    ]
    method: Annotated[
        list[str] | None, typer.Option("--method", "-m", help="A method that is judged; may be repeated; else all.")
    ] = None
    nodes: Nodes = 8


@dataclass(frozen=True, kw_only=True)
class GenerateCommand:
    """Let a language model write, and show what each of its tokens owes to those before it."""

    model: ModelName
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text that it goes on with.")]
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens are written at most.")] = 16
    answer: Annotated[str | None, typer.Option(help="Explain this text instead of what the model would write.")] = None
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is a message; the model's chat template is used.")
    ] = False
    against: Annotated[
        str | None, typer.Option(help="Another prompt of as many tokens, or mean: explain what differs between them.")
    ] = None
    stream: Annotated[bool, typer.Option("--stream", help="Print each token as soon as it is explained.")] = False
    k: Annotated[int, typer.Option("-k", min=1, help="How many sources are listed for every token.")] = 4
    first: Annotated[
        bool, typer.Option("--first/--no-first", help="Show the first token, too, where unused attention goes.")
    ] = True
    out: Annotated[Path | None, typer.Option(help="A picture of the table: generated.png.")] = None
    rules: Annotated[str, typer.Option(help="A composite by name, or a rule: Gamma(0.25), ZPlus.")] = "auto"
    memory: Annotated[str, typer.Option(help='Memory for the answer, such as "2 GiB".')] = "auto"
    json: AsJson = False
    options: ModelOptions = field(default_factory=ModelOptions)


@dataclass(frozen=True, kw_only=True)
class CircuitCommand:
    """The circuit of a task: the direct edges by which a language model tells right from wrong answers."""

    model: ModelName
    pairs: Annotated[
        Path | None,
        typer.Argument(metavar="[PAIRS]", help="Pairs of prompts with answers: .csv with a header, or .jsonl."),
    ] = None
    task: Annotated[str | None, typer.Option(help="A task that is made instead of read: greater-than.")] = None
    count: Annotated[int, typer.Option(min=1, help="How many pairs of --task are made.")] = 32
    top: Annotated[str | None, typer.Option(metavar="NUMBER|SHARE", help="So many edges: 200, or 0.01 of all.")] = None
    mass: Annotated[float | None, typer.Option(help="The predicted mass that is wanted; 0.9 without --top.")] = None
    by: Annotated[str, typer.Option(help="Rank edges by share, or by flow: the network shrinks step by step.")] = (
        "share"
    )
    k: Annotated[int, typer.Option("-k", min=1, help="How many of the strongest edges are listed.")] = 12
    chains: Annotated[
        int, typer.Option(min=0, help="How many of the strongest chains are listed; each takes some sweeps.")
    ] = 1
    draws: Annotated[int, typer.Option(min=0, help="How often pairs are drawn anew, for intervals; 0 for none.")] = 200
    patch: Annotated[
        bool, typer.Option("--patch", help="Run the network with the circuit alone; with --out, all sizes and nodes.")
    ] = False
    skip: Annotated[bool, typer.Option("--skip", help="Leave out lines that cannot be used, and list them.")] = False
    out: Annotated[Path | None, typer.Option(help="The circuit as a page: circuit.html.")] = None
    plot: Annotated[Path | None, typer.Option(help="The circuit as a picture: circuit.png, .svg, .pdf.")] = None
    save: Annotated[Path | None, typer.Option(help="The circuit as a file that Python reads: circuit.json.")] = None
    store: Annotated[Path | None, typer.Option(help="Folder for what was measured; a stopped job goes on there.")] = (
        None
    )
    batch_size: Annotated[int, typer.Option(min=1, help="Pairs that are measured together.")] = 16
    memory: Annotated[str, typer.Option(help='Memory for measures that are held, such as "2 GiB".')] = "auto"
    json: AsJson = False
    options: ModelOptions = field(default_factory=ModelOptions)


@dataclass(frozen=True, kw_only=True)
class RelmaxCommand(OfModel):
    """The samples of a data set in which channels, sets or pairs have the largest relevance, and where in them."""

    data: Annotated[Path, typer.Argument(metavar="DATA", help="A folder of images, with folders as classes, or .npy.")]
    ask: Annotated[
        list[str], typer.Option("--ask", "-a", help='What is ranked: features.28, "a x b" for pairs, a set.')
    ]
    blocks: Annotated[int, typer.Option(help="How many blocks of every question are listed.")] = 8
    of_class: Annotated[
        str | None, typer.Option(metavar="CLASS", help="List the blocks that count most for this class alone.")
    ] = None
    class_names: ClassNames = None
    sheet: Annotated[Path | None, typer.Option(help="A picture of their best samples: sheet.png.")] = None
    dry: DryRun = False
    job: JobOptions = field(default_factory=JobOptions)


@dataclass(frozen=True, kw_only=True)
class ExploreCommand(OfModel):
    """Look at decisions on a page of this machine: click nodes and ribbons, compare classes, ask formulas."""

    data: Annotated[
        list[str] | None, typer.Option("--data", help="Inputs to pick from: a folder, files, texts; may be repeated.")
    ] = None
    store: Annotated[
        Path | None, typer.Option(help="What relmax --store wrote: the samples in which nodes count most.")
    ] = None
    dataset: Annotated[Path | None, typer.Option(help="The data set of the store, for pictures of them.")] = None
    port: Port = None
    browser: Browser = True


@dataclass(frozen=True)
class ReproduceCommand:
    """Run an experiment of the paper."""

    experiment: Annotated[str, typer.Argument(help=f"{EXPERIMENTS}, all")]
    samples: Annotated[int | None, typer.Option(help="Number of samples (of seeds: rnn, circuits).")] = None
    tasks: Annotated[
        list[str] | None, typer.Option(help="Tasks of circuits: ioi, agreement, greater-than; all if none is named.")
    ] = None
    third: Annotated[int | None, typer.Option(help="Number of samples for tables of third order.")] = None
    data: Annotated[Path | None, typer.Option(help="Folder with data and weights; else downloads.")] = None
    out: Annotated[Path, typer.Option(help="Where results go; finished parts are kept there.")] = Path("out")
    embedded: Annotated[bool, typer.Option(help="Small networks on the digits of scikit-learn; no data.")] = False
    json: AsJson = False


@dataclass(frozen=True)
class VersionCommand:
    """Print the version."""

    json: AsJson = False

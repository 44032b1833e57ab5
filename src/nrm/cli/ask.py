"""Commands that ask: layers, flows, query, check."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from nrm.cli.answers import (
    CERTIFICATE,
    arguments_of,
    ask_all,
    check_of,
    cost,
    event_of,
    flows_of,
    layers_of,
    line,
    open_measure,
    partitions_of,
    plan_flows,
    sweeps,
    timed,
)
from nrm.cli.asked import CheckCommand, FlowsCommand, LayersCommand, QueryCommand
from nrm.cli.inputs import InputSample, NamedInput, example_input, read_inputs
from nrm.cli.models import RANDOM, LoadedModel, load_model
from nrm.cli.notation import read_part, read_sets
from nrm.cli.options import ModelOptions
from nrm.cli.output import Terminal
from nrm.errors import InputError
from nrm.measure import Average, Measure
from nrm.numbers import percent
from nrm.questions import Set, query as read_query


def opened(terminal: Terminal, options: ModelOptions, name: str, **more: Any) -> LoadedModel:
    """The model, and what is to be known about it."""
    with terminal.work(f"loading {name}"):
        loaded = load_model(name, **(asdict(options) | more))
    for note in loaded.notes:
        terminal.note(note)
    return loaded


def decided(result: Mapping[str, Any]) -> str:
    """A line that says what was explained."""
    found = result["decision"]
    target = found["target"]
    index = target if isinstance(target, str) else f"output {', '.join(map(str, target))}"
    name = f" {found['name']!r}" if found["name"] is not None else ""
    return f"{result['input']}: {index}{name} = {value_text(found)}"


def value_text(decision: Mapping[str, Any]) -> str:
    """The explained value; of a contrast, the output here minus that in the reference."""
    runs = decision.get("runs")
    value = f"{decision['value']:.4g}"
    if runs is None:
        return value
    count = decision.get("references", 1)
    where = "in the reference" if count == 1 else f"in the mean of {count} references"
    return f"{value}, from {runs[1]:.4g} {where} to {runs[0]:.4g}"


def show_results(
    terminal: Terminal, results: Sequence[Mapping[str, Any]], show: Callable[[Any], None], head: Any = decided
) -> int:
    """Prints what was found for every item; the exit code is 1 if one of them failed."""
    for result in results:
        if "error" in result:
            terminal.note(f"{result['input']}: {result['error']['what']} ({result['error']['got']})")
        else:
            terminal.title(head(result))
            show(result)
    return int(any("error" in result for result in results))


def dry_run(
    terminal: Terminal, command: str, loaded: LoadedModel, items: Sequence[NamedInput], arguments: Mapping[str, Any],
    plan: Callable[[Measure], list[dict[str, Any]]],
) -> int:  # fmt: skip
    """Prints what the first item would take, and all of them; the network has run once for it."""
    with terminal.work("planning") as steps:
        sample = items[0].load()
        R, seconds = timed(lambda: open_measure(loaded, sample, arguments, steps))
        runs = runs_of(R)
        found = cost([step for one in runs for step in plan(one)], seconds / len(runs), len(items))
    show_cost(terminal, found)
    terminal.finish(command, model=loaded.describe(), plan=found)
    return 0


def runs_of(R: Measure | Average) -> tuple[Measure, ...]:
    """The measures that answers are made of: one, or one for every reference."""
    return R.contrasts if isinstance(R, Average) else (R,)


def show_cost(terminal: Terminal, found: Mapping[str, Any]) -> None:
    """The lines of a plan, and what they take."""
    rows = [(one["what"], one["times"], f"{one['passes']:.2f}") for one in found["lines"]]
    terminal.table(["step", "times", "forward passes"], [*rows, ("total", "", f"{found['passes']:.2f}")], right=(1, 2))
    each = f"for each of {found['items']} inputs" if found["items"] > 1 else ""
    terminal.say(f"{each}; about {_duration(found['seconds'])} in all. Nothing was written.".lstrip("; "))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 0.1):.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def layers(asked: LayersCommand) -> int:
    """The layers of a network: name, shape, channel axis, kind, whether every walk passes it, and its mass."""
    terminal = Terminal(asked.json)
    if asked.given and (asked.shape is not None or len(asked.given) > 1):
        raise InputError("layers are those of one input", got=f"{len(asked.given)} inputs", expected="one, or --shape")
    untrained = (
        not asked.given and asked.options.weights is None and asked.model.partition(":")[0] in ("torchvision", "timm")
    )
    loaded = opened(terminal, asked.options, asked.model, **({"weights": RANDOM} if untrained else {}))
    with terminal.work("running the network") as steps:
        if asked.given:
            items = read_inputs(loaded, asked.given)
            sample, source = items[0].load(), items[0].name
        else:
            made, source = example_input(loaded, None if asked.shape is None else read_shape(asked.shape))
            sample = InputSample(made)
        R = open_measure(loaded, sample, arguments_of(asked.settings, loaded, many=True), steps)
        found = layers_of(R, asked.find, asked.blocks)
    if not asked.given:
        terminal.note(f"shapes are those for {source}; an INPUT or --shape gives others, and an INPUT masses")
        found = [{**row, "mass": None} for row in found]
    heads, rows = ["name", "shape", "channels", "kind", "cut", "mass"], []
    for row in found:
        axis = "" if row["channel_axis"] is None else f"axis {row['channel_axis']}"
        size = "x".join(map(str, row["shape"])) or "1"
        mass = "" if row["mass"] is None else percent(row["mass"], 2)
        kind = f"{row['kind']} of {row['inside']}" if row["inside"] else row["kind"]
        rows.append((row["name"], size, axis, kind, "yes" if row["cut"] else "", mass))
    terminal.table(heads[: 6 if asked.given else 5], [row[: 6 if asked.given else 5] for row in rows], right=(5,))
    terminal.finish("layers", model=loaded.describe(), input=source, layers=found)
    return 0


def read_shape(text: str) -> list[int]:
    """The sizes of a shape.

    >>> read_shape("3,224,224"), read_shape("3x8x8")
    ([3, 224, 224], [3, 8, 8])
    """
    sizes = text.replace("x", ",").split(",")
    if not all(size.strip().isdigit() and int(size) > 0 for size in sizes):
        raise InputError("not a shape", got=text, expected="sizes without the sample axis, such as 3,224,224")
    return [int(size) for size in sizes]


def flows(asked: FlowsCommand) -> int:
    """The combinations of blocks, one of every layer, through which most of the decision flowed; exact."""
    terminal = Terminal(asked.json)
    parts = [read_part(text) for text in asked.layer]
    if all(isinstance(part, Set) for part in parts):
        raise InputError("flows go through divided layers", got=", ".join(asked.layer), expected="--layer features.28")
    if len(asked.settings.against or ()) > 1 and asked.by != "relevance":
        raise InputError(f"flows by {asked.by} have one reference", got=f"--by {asked.by}", expected="--by relevance")
    loaded = opened(terminal, asked.options, asked.model)
    items = read_inputs(loaded, asked.given, batch=asked.batch)
    arguments = arguments_of(asked.settings, loaded, asked.batch, many=True)

    def blocks(R: Measure) -> list[Any]:
        divided = iter(partitions_of(R, [part for part in parts if not isinstance(part, Set)], asked.nodes))
        return [part if isinstance(part, Set) else next(divided) for part in parts]

    if asked.dry:
        return dry_run(terminal, "flows", loaded, items, arguments, lambda R: plan_flows(R, blocks(R), asked.effort))
    with terminal.work("flows") as steps:
        results = ask_all(loaded, items, arguments, steps, lambda item, R: flows_of(R, blocks(R), asked))

    def show(result: Mapping[str, Any]) -> None:
        heads, ranks = (["", "share", "flow"], 0) if asked.by == "relevance" else (["", asked.by, "share", "flow"], 1)
        rows = [
            (i + 1, *[f"{f[asked.by]:.4g}"] * ranks, percent(f["relevance"], 2), _named(f))
            for i, f in enumerate(result["flows"])
        ]
        terminal.table(heads, rows, right=(0, 1, 2)[: 2 + ranks])
        if not result["certified"]:
            gap = result["gap"]
            known = gap is not None and not math.isinf(gap)
            amount = (f"{gap:.4g}" if ranks else percent(gap, 2)) if known else ""
            more = f"; one may have {amount} more than the last" if known else ""
            terminal.say(f"not certified, flows may be missing{more} (--effort)")

    code = show_results(terminal, results, show)
    terminal.finish("flows", model=loaded.describe(), layers=asked.layer, results=results)
    return code


def _named(flow: Mapping[str, Any]) -> str:
    """The sets of a flow with their labels."""
    pairs = zip(flow["sets"], flow["labels"], strict=True)
    return " & ".join(text if label is None else f"{text} {label!r}" for text, label in pairs)


def query(asked: QueryCommand) -> int:
    """How much of the decision flowed as a formula says: NOT, AND, XOR, OR, IMPLIES of named sets."""
    terminal = Terminal(asked.json)
    known = read_sets(asked.named or [], asked.sets)
    event = read_query(asked.formula, known)
    loaded = opened(terminal, asked.options, asked.model)
    items = read_inputs(loaded, asked.given, batch=asked.batch)
    arguments = arguments_of(asked.settings, loaded, asked.batch, many=True)
    if asked.dry:
        return dry_run(
            terminal, "query", loaded, items, arguments, lambda R: [sweeps(), line(str(event), R.plan(event))]
        )
    with terminal.work("query") as steps:
        results = ask_all(loaded, items, arguments, steps, lambda item, R: event_of(R, event))

    def show(result: Mapping[str, Any]) -> None:
        terminal.say(f"  {percent(result['relevance'], 2)} of it flowed through {result['formula']}")

    code = show_results(terminal, results, show)
    written = {name: [str(one) for one in found] for name, found in known.items()}
    terminal.finish("query", model=loaded.describe(), formula=asked.formula, sets=written, results=results)
    return code


def check(asked: CheckCommand) -> int:
    """The certificate: does mass hold, and how far may the numbers be trusted? The exit code is 1 if they may not."""
    terminal = Terminal(asked.json)
    loaded = opened(terminal, asked.options, asked.model)
    items = read_inputs(loaded, asked.given, batch=asked.batch)
    arguments = arguments_of(asked.settings, loaded, asked.batch, many=True)
    if asked.dry:
        return dry_run(terminal, "check", loaded, items, arguments, lambda R: [sweeps(1 + CERTIFICATE)])
    with terminal.work("check") as steps:
        results = ask_all(loaded, items, arguments, steps, lambda item, R: check_of(R))

    def show(result: Mapping[str, Any]) -> None:
        terminal.say(result["verdict"])
        rows = [(fact["name"], fact["number"], fact["text"]) for fact in result["facts"]]
        terminal.table(["", "", ""], rows, right=(1,))
        for note in result["notes"]:
            terminal.say(note)

    code = show_results(terminal, results, show)
    terminal.finish("check", model=loaded.describe(), results=results)
    return code or int(not all(result["ok"] for result in results if "error" not in result))

"""The command that explains: a summary, a report, or a folder of results."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from nrm.cli.answers import Data, ask_all, layers_of, plan_view
from nrm.cli.ask import Batch, dry_run, opened, show_results
from nrm.cli.folder import write_folder
from nrm.cli.inputs import Item, read_inputs
from nrm.cli.models import Loaded
from nrm.cli.notation import read_parts
from nrm.cli.options import AsJson, DryRun, Inputs, MeasureOptions, ModelName, ModelOptions
from nrm.cli.output import COMMAND, Steps, Terminal, document, percent, write_json
from nrm.errors import InputError
from nrm.extras import extra
from nrm.measure import Measure
from nrm.report import Report, View
from nrm.report.view import FLOWS, NODES

with extra("cli", "the command line"):
    import typer

Out = Annotated[Path | None, typer.Option(help="report.html: one page; else a folder of results.")]


@dataclass(frozen=True)
class LookOptions:
    """What an explanation shows."""

    layer: Annotated[
        list[str] | None, typer.Option("--layer", "-l", help="Shown layers: features.28, features.28.clusters ...")
    ] = None
    nodes: Annotated[int, typer.Option(help="How many blocks of a layer are shown by themselves.")] = NODES
    flows: Annotated[int, typer.Option(help="How many chains through all layers are listed.")] = FLOWS

    def view(self, R: Measure, title: str, opening: str | None) -> View:
        """A view of a measure."""
        layers = None if not self.layer else read_parts(self.layer)
        return View(R, layers=layers, nodes=self.nodes, flows=self.flows, title=title, opening=opening)


def explain(
    model: ModelName,
    given: Inputs,
    out: Out = None,
    batch: Batch = None,
    *,
    look: LookOptions,
    options: ModelOptions,
    settings: MeasureOptions,
    dry: DryRun = False,
    json: AsJson = False,
) -> int:
    """What was decided, on what evidence, through which layers, and whether that can be trusted."""
    terminal = Terminal(json)
    read_parts(look.layer or [])
    loaded = opened(terminal, options, model)
    items = read_inputs(loaded, given, batch=batch)
    refuse_place(out, len(items))
    arguments = settings.arguments(loaded)
    openings = [_opening(model, options, given, i) for i in range(len(items))]
    if dry:
        maps = is_page(out)
        return dry_run(
            terminal, "explain", loaded, items, arguments,
            lambda R: plan_view(look.view(R, items[0].name, None), maps),
        )  # fmt: skip
    return explain_all(terminal, "explain", loaded, items, arguments, look, out, openings)


def explain_all(
    terminal: Terminal, command: str, loaded: Loaded, items: Sequence[Item], arguments: Mapping[str, Any],
    look: LookOptions, out: Path | None, openings: Sequence[str],
) -> int:  # fmt: skip
    """Explains items and says what was found; writes a page or a folder if there is a path."""
    names = dict(zip(items, _folders(items), strict=True))
    lines = dict(zip(items, openings, strict=True))

    with terminal.work(command) as steps:

        def ask(item: Item, sample: Any, R: Measure) -> Data:
            view = look.view(R, item.name, lines[item])
            parts = read_view(view, steps, maps=is_page(out))
            result = result_of(R, parts)
            if out is None:
                return result
            steps.tell(f"writing {out}")
            if is_page(out):
                Report(parts).save(out)
                return {**result, "files": [str(out)]}
            files = write_folder(out / names[item], view, document(command, input=item.name, **result))
            return {**result, "files": [f"{names[item]}/{name}" for name in files]}

        results = ask_all(loaded, items, arguments, steps, ask)
    code = show_results(terminal, results, lambda result: _show(terminal, result), _decided)
    whole = terminal.finish(command, model=loaded.describe(), results=results)
    if out is not None and not is_page(out):
        write_json(out / "index.json", whole)
    if out is not None:
        terminal.say(f"written: {out}")
    return code


def read_view(view: View, steps: Steps, maps: bool) -> Data:
    """The parts of a view; those that only a page shows if it is wanted."""
    if maps:
        return view.whole(steps.tell)
    steps.tell("the heat map")
    parts = view.facts()
    steps.tell("the flow through the layers")
    parts |= view.network() | view.flows()
    steps.tell("the certificate")
    return parts | view.health()


def result_of(R: Measure, parts: Data) -> Data:
    """The numbers of a view without its pictures."""
    columns = [
        {**{key: column[key] for key in ("name", "what", "by", "mass")},
         "nodes": [{key: node[key] for key in ("kind", "block", "text", "share")} for node in column["nodes"]]}
        for column in parts["columns"]
    ]  # fmt: skip
    flows = [{"share": flow["share"], "nodes": flow["nodes"]} for flow in parts["flows"]]
    return {
        "decision": parts["decision"], "options": parts["options"], "layers": layers_of(R), "columns": columns,
        "joint": parts["tables"], "flows": flows, "certified": parts["certified"], "health": parts["health"],
    }  # fmt: skip


def _opening(model: str, options: ModelOptions, given: Sequence[str], number: int) -> str:
    """The lines of Python that load the model and the input as this command did."""
    defaults = ModelOptions()
    changed = [
        f", {f.name}={_literal(getattr(options, f.name))}"
        for f in fields(options)
        if getattr(options, f.name) != getattr(defaults, f.name)
    ]
    return "\n".join(
        [
            f"# {COMMAND.get()}",
            "from nrm.cli import load_model, read_inputs",
            f"loaded = load_model({model!r}{''.join(changed)})",
            f"model, inputs = loaded.model, read_inputs(loaded, {list(given)!r})[{number}].load().inputs",
        ]
    )


def _literal(value: Any) -> str:
    return repr(str(value)) if isinstance(value, Path) else repr(value)


def is_page(out: Path | None) -> bool:
    """Whether a page is to be written, and not a folder."""
    return out is not None and out.suffix.lower() in (".html", ".htm")


def refuse_place(out: Path | None, count: int) -> None:
    """Complains about a place that cannot be written to, before anything is computed."""
    if out is None:
        return
    if is_page(out):
        if count > 1:
            expected = "one input, or a folder such as --out results/"
            raise InputError("a report is about one input", got=f"{count} inputs", expected=expected)
        if out.is_dir() or not out.absolute().parent.is_dir():
            raise InputError(
                "the report cannot be written there", got=str(out), expected="a file in a folder that exists"
            )
    elif out.exists() and not out.is_dir():
        raise InputError(
            "there is a file in the place of the folder", got=str(out), expected="report.html, or a folder"
        )


def _folders(items: Sequence[Item]) -> list[str]:
    """A folder for every item, each once."""
    found: list[str] = []
    for item in items:
        name = re.sub(r"[^\w.-]+", "-", item.name).strip(".-")[:80] or "input"
        found.append(name if name not in found else f"{name}-{len(found)}")
    return found


def _decided(result: Mapping[str, Any]) -> str:
    found = result["decision"]
    best = next((one for one in found["alternatives"] if one["index"] == found["index"]), None)
    chance = "" if best is None else f" ({percent(best['probability'])})"
    return f"{result['input']}: {found['name']} = {found['value']:.4g}{chance}"


def _show(terminal: Terminal, result: Mapping[str, Any]) -> None:
    found = result["decision"]
    if found["sign"]:
        terminal.say(found["sign"])
    rows = [(one["name"], f"{one['value']:.4g}", percent(one["probability"])) for one in found["alternatives"]]
    terminal.table(["output", "value", "probability"], rows, right=(1, 2))
    terminal.say("")
    layers = [(c["name"], c["what"], percent(c["mass"]), _strongest(c)) for c in result["columns"]]
    terminal.table(["layer", "of", "mass", "strongest"], layers, right=(2,))
    if result["flows"]:
        terminal.say("")
        chains = [(percent(flow["share"]), _chain(result["columns"], flow["nodes"])) for flow in result["flows"]]
        head = "strongest chains" if result["certified"] else "strongest chains (not certified: there may be stronger)"
        terminal.table(["share", head], chains, right=(0,))
    terminal.say("", result["health"]["verdict"])


def _strongest(column: Mapping[str, Any]) -> str:
    best = max(column["nodes"], key=lambda node: (node["kind"] == "block", abs(node["share"])))
    return f"{_node(column, best)} {percent(best['share'])}"


def _node(column: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """A node in words: its name, or what it is and its number."""
    return f"{column['by'].removesuffix('s')} {node['text']}" if node["text"].isdigit() else str(node["text"])


def _chain(columns: Sequence[Mapping[str, Any]], nodes: Sequence[Sequence[int]]) -> str:
    return " > ".join(f"{columns[c]['name']} {_node(columns[c], columns[c]['nodes'][n])}" for c, n in nodes)

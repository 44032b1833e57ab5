"""Commands that explain: a summary, a report, or a folder of results."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from nrm.cli.answers import Data, arguments_of, ask_all, layers_of, plan_view, table_of
from nrm.cli.ask import dry_run, opened, show_results, value_text
from nrm.cli.asked import ExplainCommand, ReportCommand
from nrm.cli.folder import write_folder, write_heat, write_json
from nrm.cli.inputs import NamedInput, read_inputs
from nrm.cli.models import LoadedModel
from nrm.cli.notation import read_parts
from nrm.cli.options import LookOptions, ModelOptions
from nrm.cli.output import COMMAND, Stages, Terminal, document
from nrm.errors import InputError
from nrm.files import mark_results
from nrm.measure import WORDS, Measure
from nrm.numbers import percent
from nrm.report import Report, View

PRINTED = Path("-")
"""The place that is the standard output."""


class Destination(NamedTuple):
    """Where an explanation goes: nowhere, a page (a file, or printed), a folder of pages, or a folder of results."""

    path: Path | None
    pages: bool = False
    many: bool = False

    @property
    def folder(self) -> bool:
        """Whether it is a folder of results."""
        return self.path is not None and not self.pages

    def page(self, name: str) -> Path:
        """The file of the page of an item."""
        assert self.path is not None
        return self.path / f"{name}.html" if self.many else self.path


def explain(asked: ExplainCommand) -> int:
    """What was decided, on what evidence, through which layers, and whether that can be trusted."""
    terminal = Terminal(asked.json)
    read_parts(asked.look.layer or [])
    loaded = opened(terminal, asked.options, asked.model)
    items = read_inputs(loaded, asked.given, batch=asked.batch)
    place = read_place(asked.out, len(items), asked.json)
    arguments = arguments_of(asked.settings, loaded, asked.batch)
    if asked.dry:
        return dry_run(
            terminal, "explain", loaded, items, arguments,
            lambda R: plan_view(view_of(asked.look, R, items[0].name, None), place.pages, asked.look.fast),
        )  # fmt: skip
    openings = [_opening(asked, i) for i in range(len(items))]
    return explain_all(terminal, "explain", loaded, items, arguments, asked.look, place, openings)


def report(asked: ReportCommand) -> int:
    """An explanation as a page; of several inputs, a page for each in a folder."""
    terminal = Terminal(asked.json)
    read_parts(asked.look.layer or [])
    loaded = opened(terminal, asked.options, asked.model)
    items = read_inputs(loaded, asked.given, batch=asked.batch)
    many = len(items) > 1 or not (is_page(asked.out) or asked.out == PRINTED)
    if many and is_page(asked.out):
        raise InputError(
            "a page is about one input", got=f"{len(items)} inputs", expected="a folder for their pages",
            hint=f"--out {asked.out.with_suffix('')}",
        )  # fmt: skip
    place = Destination(asked.out, pages=True, many=True) if many else read_place(asked.out, 1, asked.json)
    refuse_file(asked.out if many else None)
    openings = [_opening(asked, i) for i in range(len(items))]
    arguments = arguments_of(asked.settings, loaded, asked.batch)
    return explain_all(terminal, "report", loaded, items, arguments, asked.look, place, openings)


def view_of(look: LookOptions, R: Measure, title: str, opening: str | None) -> View:
    """A view of a measure as options say."""
    layers = None if not look.layer else read_parts(look.layer)
    return View(R, layers=layers, nodes=look.nodes, flows=look.flows, title=title, opening=opening)


def explain_all(
    terminal: Terminal, command: str, loaded: LoadedModel, items: Sequence[NamedInput], arguments: Mapping[str, Any],
    look: LookOptions, place: Destination, openings: Sequence[str],
) -> int:  # fmt: skip
    """Explains items and says what was found; writes pages or a folder if there is a place for them.

    The heat maps of all items come first, as they are cheap; then the rest, item by item.
    """
    names = dict(zip(items, _folders(items), strict=True))
    lines = dict(zip(items, openings, strict=True))
    seen: dict[NamedInput, View] = {}
    if place.path is not None and (place.folder or place.many):
        mark_results(place.path)

    with terminal.work(command) as steps:

        def begin(item: NamedInput, R: Measure) -> None:
            steps.tell("the heat map")
            seen[item] = view_of(look, R, item.name, lines[item])
            if place.folder:
                assert place.path is not None
                write_heat(place.path / names[item], seen[item])
            else:
                R(seen[item].canvas.variable)

        def go_on(item: NamedInput, R: Measure) -> Data:
            view = seen.pop(item)
            view = view if view.R is R else view_of(look, R, item.name, lines[item])  # there was no room to keep it
            parts = read_view(view, steps, place.pages, look.fast)
            result = result_of(R, parts)
            if place.path is None:
                return result
            steps.tell("writing")
            return {**result, "files": write(terminal, command, place, names[item], view, parts)}

        results = ask_all(loaded, items, arguments, steps, go_on, begin)
    code = show_results(terminal, results, lambda result: _show(terminal, result), _decided)
    if place.path is not None and place.path != PRINTED:
        terminal.say(f"written: {place.path}")
    whole = terminal.finish(command, model=loaded.describe(), results=results, seconds=steps.seconds)
    if place.folder:
        assert place.path is not None
        write_json(place.path / "index.json", whole)
    return code


def write(terminal: Terminal, command: str, place: Destination, name: str, view: View, parts: Data) -> list[str]:
    """Writes what was found about one item; the names of the files."""
    assert place.path is not None
    if place.path == PRINTED:
        terminal.print(Report(parts).html)
        return []
    if place.pages:
        Report(parts).save(place.page(name))
        return [str(place.page(name))]
    found = document(command, input=parts["title"], **result_of(view.R, parts))
    files = write_folder(place.path / name, view, found, flows="columns" in parts)
    return [f"{name}/{file}" for file in files]


def read_view(view: View, steps: Stages, pages: bool, fast: bool) -> Data:
    """The parts of a view: what only a page shows if one is wanted, and what takes long unless it is to be fast."""
    if pages and not fast:
        return view.whole(steps.tell)
    steps.tell("the layers")
    parts = view.facts()
    if fast and not pages:
        return parts
    steps.tell("the flow through the layers")
    parts |= view.network()
    if fast:
        return parts | {"flows": [], "certified": True, "maps": []}
    steps.tell("the strongest chains")
    parts |= view.flows()
    steps.tell("the certificate")
    return parts | view.health()


def result_of(R: Measure, parts: Data) -> Data:
    """The numbers of a view without its pictures; tables name their axes, and what stands along them."""
    columns = [
        {**{key: column[key] for key in ("name", "what", "by", "mass")},
         "nodes": [{key: node[key] for key in ("kind", "block", "text", "share")} for node in column["nodes"]]}
        for column in parts.get("columns", ())
    ]  # fmt: skip
    joint = [
        table_of(table, [(one["name"], one["by"], [node["text"] for node in one["nodes"]]) for one in pair])
        for table, pair in zip(parts.get("tables", ()), itertools.pairwise(columns), strict=True)
    ]
    flows = [
        {"share": flow["share"], "nodes": flow["nodes"],
         "labels": [f"{columns[c]['name']} {_node(columns[c], columns[c]['nodes'][n])}" for c, n in flow["nodes"]]}
        for flow in parts.get("flows", ())
    ]  # fmt: skip
    return {
        "decision": parts["decision"], "options": parts["options"], "layers": layers_of(R), "columns": columns,
        "joint": joint, "flows": flows, "certified": parts.get("certified", True), "health": parts["health"],
    }  # fmt: skip


def _opening(asked: ExplainCommand | ReportCommand, number: int) -> str:
    """The lines of Python that load the model, the input and the reference as this command did."""
    defaults, options, against = ModelOptions(), asked.options, next(iter(asked.settings.against or ()), None)
    changed = [
        f", {f.name}={_literal(getattr(options, f.name))}"
        for f in fields(options)
        if getattr(options, f.name) != getattr(defaults, f.name)
    ]
    batch = "" if asked.batch is None else f", batch={asked.batch}"
    return "\n".join(
        [
            f"# {COMMAND.get()}",
            "from nrm.cli import load_model, read_inputs",
            f"loaded = load_model({asked.model!r}{''.join(changed)})",
            f"model, inputs = loaded.model, read_inputs(loaded, {list(asked.given)!r}{batch})[{number}].load().inputs",
            *reference_lines(against, f"read_inputs(loaded, [{against!r}]{batch})[0].load().inputs"),
        ]
    )


def reference_lines(against: str | None, reading: str) -> list[str]:
    """The line that makes the reference of a contrast, if there is one: a word, or what is read."""
    return [] if against is None else [f"reference = {repr(against) if against in WORDS else reading}"]


def _literal(value: Any) -> str:
    return repr(str(value)) if isinstance(value, Path) else repr(value)


def is_page(out: Path | None) -> bool:
    """Whether a page is to be written, and not a folder."""
    return out is not None and (out.suffix.lower() in (".html", ".htm") or out == PRINTED)


def read_place(out: Path | None, count: int, as_json: bool) -> Destination:
    """The place that is meant; one that cannot be written to is refused before anything is computed."""
    if out is None or not is_page(out):
        refuse_file(out)
        return Destination(out)
    if count > 1:
        expected = "one input, or a folder such as --out results/"
        raise InputError("a report is about one input", got=f"{count} inputs", expected=expected, hint="nrm report")
    if out == PRINTED and as_json:
        raise InputError("one thing can be printed", got="--out - and --json", expected="one of them")
    if out != PRINTED and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise InputError("the report cannot be written there", got=str(out), expected="a file in a folder that exists")
    return Destination(out, pages=True)


def refuse_file(out: Path | None) -> None:
    """Complains about a file in the place of a folder."""
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(
            "there is a file in the place of the folder", got=str(out), expected="report.html, or a folder"
        )


def _folders(items: Sequence[NamedInput]) -> list[str]:
    """A folder for every item, each once."""
    found: list[str] = []
    for item in items:
        name = re.sub(r"[^\w.-]+", "-", item.name).strip(".-")[:80] or "input"
        found.append(name if name not in found else f"{name}-{len(found)}")
    return found


def _decided(result: Mapping[str, Any]) -> str:
    found = result["decision"]
    best = next((one for one in found["alternatives"] if one["index"] == found["index"]), None)
    chance = "" if best is None else f" ({percent(best['probability'], 2)})"
    return f"{result['input']}: {found['name']} = {value_text(found)}{chance}"


def _show(terminal: Terminal, result: Mapping[str, Any]) -> None:
    found = result["decision"]
    if found["sign"]:
        terminal.say(found["sign"])
    rows = [(one["name"], f"{one['value']:.4g}", percent(one["probability"], 2)) for one in found["alternatives"]]
    terminal.table(["output", "value", "probability"], rows, right=(1, 2))
    if result["columns"]:
        terminal.say("")
        layers = [(c["name"], c["what"], percent(c["mass"], 2), _strongest(c)) for c in result["columns"]]
        terminal.table(["layer", "of", "mass", "strongest"], layers, right=(2,))
    if result["flows"]:
        terminal.say("")
        chains = [(percent(flow["share"], 2), " > ".join(flow["labels"])) for flow in result["flows"]]
        head = "strongest chains" if result["certified"] else "strongest chains (not certified: there may be stronger)"
        terminal.table(["share", head], chains, right=(0,))
    terminal.say("", result["health"]["verdict"])


def _strongest(column: Mapping[str, Any]) -> str:
    best = max(column["nodes"], key=lambda node: (node["kind"] == "block", abs(node["share"])))
    return f"{_node(column, best)} {percent(best['share'], 2)}"


def _node(column: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """A node in words: its name, or what it is and its number."""
    return f"{column['by'].removesuffix('s')} {node['text']}" if node["text"].isdigit() else str(node["text"])

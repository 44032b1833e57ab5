"""The command that finds the circuit of a task: circuit."""

from pathlib import Path
from typing import Any

from nrm.cli.ask import opened
from nrm.cli.asked import CircuitCommand
from nrm.cli.models import LoadedModel
from nrm.cli.output import Terminal
from nrm.errors import InputError
from nrm.evaluate import patch
from nrm.jobs import TaskCircuit, circuit as find_circuit
from nrm.measure import CircuitEdge
from nrm.numbers import percent
from nrm.plot import circuit as draw, sentence
from nrm.tasks import Pairs, greater_than, read_pairs

TASKS = {"greater-than": greater_than}
PAGES, PICTURES, FILES = (".html", ".htm"), (".png", ".svg", ".pdf"), (".json",)
ENOUGH = 0.9
"""The mass that is looked for where nothing else is said."""


def circuit(asked: CircuitCommand) -> int:
    """The circuit of a task: the direct edges by which a language model tells right from wrong answers."""
    terminal = Terminal(asked.json)
    top = None if asked.top is None else read_top(asked.top)
    mass = ENOUGH if top is None and asked.mass is None else asked.mass
    _refuse(asked)
    loaded = opened(terminal, asked.options, asked.model)
    with terminal.work("reading pairs"):
        pairs = read_task(asked, loaded)
    for note in pairs.notes:
        terminal.note(note)
    with terminal.work("circuit") as steps:
        steps.tell(f"measuring {len(pairs)} pairs")
        found = find_circuit(
            loaded.model, pairs, top=top, mass=mass, by=asked.by, chains=asked.chains, draws=asked.draws,
            batch_size=asked.batch_size, store=asked.store, memory=asked.memory, progress=False,
        )  # fmt: skip
        if asked.patch:
            steps.tell("patching")
        patched = patch(loaded.model, found, pairs, batch_size=asked.batch_size) if asked.patch else None
        written = _write(asked, loaded, pairs, found, steps.tell)
    f = None if patched is None else patched.f
    _show(terminal, asked, found, f)
    for path in written:
        terminal.note(f"written: {path}")
    terminal.finish(
        "circuit", model=loaded.describe(), pairs={"name": pairs.name, "count": len(pairs), "left_out": pairs.left_out},
        **facts_of(found, asked.k), f=f, files=written,
    )  # fmt: skip
    return 0


def read_top(text: str) -> int | float:
    """A number of edges, or a share of all.

    >>> read_top("200"), read_top("0.01")
    (200, 0.01)
    """
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        raise InputError(
            "not a number of edges", got=f"--top {text}", expected="200, or a share such as 0.01"
        ) from None


def read_task(asked: CircuitCommand, loaded: LoadedModel) -> Pairs:
    """The pairs of a file, or of a task that is made."""
    if loaded.tokenizer is None:
        raise InputError("the model has no tokenizer", where=loaded.name, expected="hf:NAME of a language model")
    if asked.task is not None:
        return TASKS[asked.task](loaded.tokenizer, asked.count)
    assert asked.pairs is not None
    return read_pairs(asked.pairs, loaded.tokenizer, bad="skip" if asked.skip else "raise")


def _refuse(asked: CircuitCommand) -> None:
    """Complains about what cannot be, before anything is computed."""
    if (asked.pairs is None) == (asked.task is None):
        got = "neither" if asked.task is None else f"{asked.pairs} and --task {asked.task}"
        raise InputError("a task is a file of pairs, or --task", got=got, expected="one of them")
    if asked.task is not None and asked.task not in TASKS:
        raise InputError("no such task", got=f"--task {asked.task}", expected=", ".join(TASKS))
    for option, path, kinds in (("out", asked.out, PAGES), ("plot", asked.plot, PICTURES), ("save", asked.save, FILES)):
        if path is not None and (path.suffix.lower() not in kinds or not path.absolute().parent.is_dir()):
            expected = f"a file ({', '.join(kinds)}) in a folder that exists"
            raise InputError("the circuit cannot be written there", got=f"--{option} {path}", expected=expected)


def _write(asked: CircuitCommand, loaded: LoadedModel, pairs: Pairs, found: TaskCircuit, tell: Any) -> list[Path]:
    """Writes what is asked for: the circuit, its picture, its page."""
    if asked.save is not None:
        found.save(asked.save)
    if asked.plot is not None:
        tell("drawing")
        draw(found).save(asked.plot)  # type: ignore[attr-defined]
    if asked.out is not None:
        tell("growing circuits for the page")
        found.report(
            asked.out, loaded.model, pairs, patch=asked.patch, title=pairs.name, batch_size=asked.batch_size
        )  # fmt: skip
    return [path for path in (asked.save, asked.plot, asked.out) if path is not None]


def facts_of(found: TaskCircuit, k: int) -> dict[str, Any]:
    """A circuit as plain data."""
    circuit = found.circuit
    return {
        "accuracy": vars(found.accuracy), "edges": len(circuit), "possible": circuit.possible, "mass": circuit.mass,
        "mass_interval": found.mass_interval, "stability": found.stability, "nodes": circuit.nodes,
        "strongest": [_edge(edge) for edge in circuit.top(k)],
        "chains": [{"relevance": c.relevance, "edges": [_edge(e) for e in c.edges]} for c in circuit.chains],
    }  # fmt: skip


def _edge(edge: CircuitEdge) -> dict[str, Any]:
    return {"writer": str(edge.writer), "reader": str(edge.reader), "flow": edge.flow, "relevance": edge.relevance}


def _show(terminal: Terminal, asked: CircuitCommand, found: TaskCircuit, f: float | None) -> None:
    circuit = found.circuit
    terminal.say(repr(found.accuracy))
    measured = "" if f is None else f"; patching measures {percent(f)}"
    terminal.title(f"{sentence(circuit)} (predicted){measured}")
    if found.mass_interval is not None and found.stability is not None:
        low, high = found.mass_interval
        terminal.say(
            f"over pairs drawn anew: mass {low:.3f} to {high:.3f}, stability {found.stability:.2f} (mean overlap of "
            f"circuits of this size); {len(circuit.nodes)} nodes"
        )
    rows = [
        (percent(e.flow or 0.0, 1), percent(e.relevance, 1), str(e.writer), str(e.reader)) for e in circuit.top(asked.k)
    ]
    terminal.table(["flow", "share", "from", "to"], rows, right=(0, 1))
    for chain in circuit.chains:
        terminal.say(f"{percent(chain.relevance, 1):>8}  {chain}")

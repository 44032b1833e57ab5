"""The command that judges relevance by interventions: evaluate."""

from collections.abc import Mapping, Sequence
from typing import Any

from nrm.cli.answers import Data, arguments_of, ask_all, decision, partitions_of
from nrm.cli.ask import opened, show_results
from nrm.cli.asked import EvaluateCommand
from nrm.cli.inputs import read_inputs
from nrm.cli.notation import read_parts
from nrm.cli.output import Terminal
from nrm.errors import InputError
from nrm.evaluate import METHODS, compare
from nrm.measure import Measure

WORDS = {
    "nrm": "joint relevance", "lrp": "sum of marginal relevances", "occlusion": "drop by removing the blocks",
    "activation": "sum of activations", "random": "random numbers",
}  # fmt: skip


def evaluate(asked: EvaluateCommand) -> int:
    """How well relevance agrees with what happens when blocks are removed."""
    terminal = Terminal(asked.json)
    parts = read_parts(asked.layer)
    methods = asked.method or list(METHODS)
    for one in methods:
        if one not in METHODS:
            raise InputError("no such method", got=f"--method {one}", expected=", ".join(METHODS))
    loaded = opened(terminal, asked.options, asked.model)
    items = read_inputs(loaded, asked.given, batch=asked.batch)
    arguments = arguments_of(asked.settings, loaded, asked.batch)
    with terminal.work("evaluate") as steps:

        def ask(_: Any, R: Measure) -> Data:
            blocks = partitions_of(R, parts, asked.nodes)
            steps.tell("removing blocks")
            return _compared(R, blocks, methods)

        results = ask_all(loaded, items, arguments, steps, ask)
    code = show_results(terminal, results, lambda result: _show(terminal, result["methods"]))
    good = [result["methods"] for result in results if "error" not in result]
    mean = [
        {"method": name, "pearson": sum(one[i]["pearson"] for one in good) / len(good)}
        for i, name in enumerate(methods)
    ]
    if len(good) > 1:
        terminal.title(f"mean over {len(good)} inputs")
        _show(terminal, mean)
    facts = {"model": loaded.describe(), "layers": asked.layer}
    terminal.finish("evaluate", **facts, results=results, mean=mean, seconds=steps.seconds)
    return code


def _compared(R: Measure, blocks: Sequence[Any], methods: Sequence[str]) -> Data:
    found = compare(R, *blocks, methods=tuple(methods))
    judged = []
    for name in methods:
        one = found[name]
        area = None if one.area is None else float(one.area[0])
        judged.append({"method": name, "pearson": float(one.pearson[0]), "sc": one.sc[0].tolist(), "area": area})
    return {"decision": decision(R), "combinations": found.combinations, "k": found.k.tolist(), "methods": judged}


def _show(terminal: Terminal, methods: Sequence[Mapping[str, Any]]) -> None:
    rows = [(one["method"], f"{one['pearson']:.3f}", WORDS.get(one["method"], "")) for one in methods]
    terminal.table(["method", "correlation", "what it is"], rows, right=(1,))

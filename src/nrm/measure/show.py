"""How a measure shows itself in a terminal and in a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from nrm.measure.check import Check
from nrm.measure.target import Target
from nrm.rules import Network

_Rows = list[tuple[str, str]]


def measure_text(network: Network, target: Target, labels: Mapping[str, Sequence[str]], check: Check | None) -> str:
    """The facts of a measure, one per line."""
    rows = _rows(network, target, labels, check)
    return "normalized relevance measure\n" + "\n".join(f"  {name:<11} {text}" for name, text in rows)


def measure_html(network: Network, target: Target, labels: Mapping[str, Sequence[str]], check: Check | None) -> str:
    """The same facts as a table; every text is escaped."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(n)}</th><td style='text-align:left'>{html.escape(t)}</td></tr>"
        for n, t in _rows(network, target, labels, check)
    )
    return f"<table><caption>normalized relevance measure</caption>{rows}</table>"


def _rows(network: Network, target: Target, labels: Mapping[str, Sequence[str]], check: Check | None) -> _Rows:
    tape = network.tape
    options = f"rules={network.composite.name!r}, bias={network.bias!r}, zero={network.zero!r}"
    if network.normalize is not True:
        options += f", normalize={network.normalize!r}"
    rows = [
        ("samples", str(tape.batch)),
        ("input", ", ".join(f"{tape.nodes[i].name} {tuple(tape.nodes[i].shape)}" for i in tape.inputs)),
        ("explains", _explained(target, labels)),
        ("options", options),
        ("layers", f"{len(tape.nodes)} tensors, {str(tape.dtype).removeprefix('torch.')}"),
    ]
    if bool((target.value < 0).any()):
        rows.append(
            ("sign", "relevance is a share of a negative output: positive relevance argues for the negative value")
        )
    if check is not None:
        rows.append(("check", check.verdict))
    return rows


def _explained(target: Target, labels: Mapping[str, Sequence[str]]) -> str:
    if target.index is None:
        return f"{target.spread} (value {_numbers(target.value.tolist())})"
    names = labels.get("output")
    shown = []
    for index, value in zip(target.index.tolist()[:4], target.value.tolist()[:4], strict=True):
        name = f" {names[index]!r}" if names is not None and index < len(names) else ""
        shown.append(f"output {index}{name} = {value:.4g}")
    return "; ".join(shown) + (" ..." if len(target.index) > 4 else "")


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{v:.4g}" for v in values[:4]) + (" ..." if len(values) > 4 else "")

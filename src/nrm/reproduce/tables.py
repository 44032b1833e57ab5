"""From parts to results: rows, ``results.json`` and a table in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nrm.evaluate import METHODS, Comparison, interval
from nrm.reproduce.store import SCHEMA, Tensors

TableRow = dict[str, Any]


def as_tensors(found: Comparison) -> Tensors:
    """A comparison as it is kept."""
    kept = {"value": found.value, "combinations": torch.tensor(found.combinations)}
    for name, agreement in found.methods.items():
        kept[f"{name}/pearson"] = agreement.pearson
        if found.k.numel():
            kept["k"], kept[f"{name}/sc"] = found.k, agreement.sc
        if agreement.area is not None:
            kept[f"{name}/area"] = agreement.area
    return {key: value.clone() for key, value in kept.items()}


def joined(parts: Sequence[Tensors]) -> Tensors:
    """The parts of one question, samples one after the other. Not every part has everything."""
    table: Tensors = {}
    for key in dict.fromkeys(k for part in parts for k in part):
        found = [part[key] for part in parts if key in part]
        table[key] = found[0] if key in ("k", "combinations") else torch.cat(found)
    return table


def methods_of(table: Tensors) -> Iterator[tuple[str, Tensor]]:
    """The methods of a table with their correlations."""
    names = [key.rpartition("/")[0] for key in table if key.endswith("/pearson")]
    for name in sorted(names, key=lambda n: (METHODS.index(n) if n in METHODS else -1, n)):
        yield name, table[f"{name}/pearson"]


def rows_of(table: Tensors, other: str = "rules", **facts: Any) -> list[TableRow]:
    """A row for every method. ``method (X)`` is a method whose fact ``other`` is X, not what ``facts`` say."""
    rows = []
    for key, values in methods_of(table):
        name, _, changed = key.partition(" (")
        defined = values[torch.isfinite(values)]
        row: TableRow = {**facts, "method": name, "samples": len(values)}
        if changed:
            row[other] = changed.removesuffix(")")
        row["pearson_mean"] = float(defined.mean()) if len(defined) else None
        row["pearson_ci"] = list(interval(defined)) if len(defined) else None
        row["undefined"] = len(values) - len(defined)
        row["negative_outputs"] = int((table["value"] <= 0).sum())
        row["combinations"] = int(table["combinations"])
        if f"{key}/sc" in table:
            sc = table[f"{key}/sc"].double()
            row["sc"] = {"k": table["k"].tolist(), "mean": sc.mean(0).tolist(), "samples": len(sc)}
        if f"{key}/area" in table:
            row["sc_area"] = float(table[f"{key}/area"].mean())
        rows.append(row)
    return rows


def as_json(experiment: str, rows: Sequence[TableRow], facts: dict[str, Any]) -> str:
    """The text of ``results.json``."""
    return json.dumps({"schema": SCHEMA, "experiment": experiment, **facts, "rows": list(rows)}, indent=1)


def as_markdown(title: str, rows: Sequence[TableRow], facts: dict[str, Any]) -> str:
    """The rows as a table, without the curves."""
    hidden = ("sc", "pearson_ci", "combinations", "undefined", "negative_outputs", "curves")
    columns = list(dict.fromkeys(k for row in rows for k in row if k not in hidden))
    columns = [c for c in columns if any(row.get(c) not in (None, "") for row in rows)]
    lines = [f"# {title}", ""]
    lines += [f"- {key}: {value}" for key, value in facts.items()]
    lines += ["", "| " + " | ".join(c.replace("_", " ") for c in columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        lines.append("| " + " | ".join(_cell(row, c) for c in columns) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: TableRow, column: str) -> str:
    value = row.get(column)
    if column == "pearson_mean" and value is not None:
        low, high = row["pearson_ci"]
        return f"{value:.3f} ({low:.3f} to {high:.3f})"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)

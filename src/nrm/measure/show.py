"""How a measure shows itself in a terminal and in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nrm.measure.check import Check
from nrm.measure.labels import Names, name_of
from nrm.measure.target import Target
from nrm.rules import EXACT, NAMES, Composite
from nrm.steps import Network

if TYPE_CHECKING:
    from nrm.measure.measure import Measure

FactRows = list[tuple[str, str]]
SHOWN = 4
"""How many samples are shown one by one."""
NOTES = (
    ("attention", "attention is computed by"), ("decoder", "the decoder "), ("compiled", "compiled "),
    ("weights", "weights "), ("calls", "calls "),
)  # fmt: skip
"""The notes of a capture that are facts of the measure, by how they begin, and what they are about."""
SIGN = "relevance is a share of a negative output: positive relevance argues for the negative value"


def as_text(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Facts, one per line."""
    wide = max(len(name) for name, _ in rows)
    return "\n".join([title, *(f"  {name:<{wide}}  {text}" for name, text in rows)])


def as_html(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Facts as a table; every text is escaped."""
    left = "style='text-align:left'"
    cells = "".join(f"<tr><th {left}>{html.escape(n)}</th><td {left}>{html.escape(t)}</td></tr>" for n, t in rows)
    return f"<table><caption>{html.escape(title)}</caption><tbody>{cells}</tbody></table>"


def measure_rows(
    network: Network, target: Target, labels: Mapping[str, Names], check: Check | None, samples: range
) -> FactRows:
    """The facts of a measure. The options can be copied as arguments."""
    tape = network.tape
    one = len(samples) == 1 and tape.batch > 1
    reached = sum(network.rules.reached)
    rows = [
        ("samples", f"number {samples[0]} of {tape.batch}" if one else str(tape.batch)),
        ("input", ", ".join(f"{tape.nodes[i].name} {_shape(tape.nodes[i].layer_shape)}" for i in tape.inputs)),
        ("explains", outputs_text(target, labels, samples)),
        *_contrast_rows(target, samples),
        ("options", options_text(network)),
        ("layers", f"{reached} on the way to the output; R.layers lists them"),
    ]
    rows += [(name, note) for name, begin in NOTES for note in tape.notes if note.startswith(begin)]
    blocks = {node.block for node in tape.nodes if node.block is not None}
    if blocks:
        rows.append(("values", f"those inside {len(blocks)} blocks are computed again when they are read (memory=)"))
    sign = sign_text(target, samples)
    if sign is not None:
        rows.append(("sign", sign))
    rows.append(("check", "not yet asked; R.check() is the certificate" if check is None else check.verdict))
    return rows


def sign_text(target: Target, samples: range) -> str | None:
    """What the sign of relevance means where the explained output, or the difference of a contrast, is negative."""
    if not bool((target.value[samples.start : samples.stop] < 0).any()):
        return None
    return SIGN if target.runs is None else SIGN.replace("output", "difference")


def _contrast_rows(target: Target, samples: range) -> FactRows:
    """What a contrast is the difference of: the explained output here, and in the reference."""
    if target.runs is None:
        return []
    here, there = target.runs
    rows = [
        f"{float(here[s]):.4g} - {float(there[s]):.4g} = {float(target.value[s]):.4g}" for s in list(samples)[:SHOWN]
    ]
    more = " ..." if len(samples) > SHOWN else ""
    return [("difference", f"{'; '.join(rows)}{more}, the output here less that of the reference")]


def options_text(network: Network) -> str:
    """What was chosen, as arguments of ``nrm.measure``."""
    # A contrast has no biases to choose about; what it is compared with has no text, and is given a name.
    chosen = f"bias={network.bias!r}" if network.tape.runs is None else "against=reference"
    options = [f"rules={rules_text(network.composite)}", chosen, f"zero={network.zero!r}"]
    if network.normalize is not True:
        options.append(f"normalize={network.normalize!r}")
    return ", ".join([*options, f"dtype={network.tape.dtype}"])


def rules_text(composite: Composite) -> str:
    """A composite as a user writes it: its name, one rule, or a mapping."""
    named = composite.name in (*NAMES, EXACT)
    if not composite.changes:
        return repr(composite.name) if named else composite.name
    pairs = [(repr(k) if isinstance(k, str) else f"nn.{k.__name__}", repr(v)) for k, v in composite.changes]
    pairs += [("'*'", repr(composite.name))] if named else []
    return "{" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}"


def outputs_text(target: Target, labels: Mapping[str, Names], samples: Iterable[int]) -> str:
    """The explained outputs of some samples with their values here, by name where there are names."""
    chosen = list(samples)
    values = (target.value if target.runs is None else target.runs[0]).tolist()
    if target.index is None:
        shown = [f"{values[s]:.4g}" for s in chosen[:SHOWN]]
        return f"{target.spread} = {', '.join(shown)}" + (" ..." if len(chosen) > SHOWN else "")
    shown = [f"{output_text(target, labels, int(target.index[s]), s)} = {values[s]:.4g}" for s in chosen[:SHOWN]]
    return "; ".join(shown) + (" ..." if len(chosen) > SHOWN else "")


def output_text(target: Target, labels: Mapping[str, Names], flat: int, sample: int = 0) -> str:
    """One output neuron: its index along every axis, and the name of its class."""
    at = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), target.shape)) if target.shape else ()
    name = name_of(labels, "output", at[-1], sample) if at else None
    index = "output" if not at else f"output {at[0] if len(at) == 1 else at}"
    return index if name is None else f"{index} {name!r}"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "1"


def describe(R: Measure, check: Check) -> dict[str, Any]:
    """Everything about a measure that a file should say, as plain data."""
    network, target = R.inner.network, R.target
    runs = None if R.inner.target.runs is None else {"here": R.here.tolist(), "reference": R.there.tolist()}
    return {
        "rules": network.composite.name,
        "composite": repr(network.composite),
        "bias": network.bias,
        "zero": network.zero,
        "normalize": network.normalize,
        "dtype": str(network.tape.dtype),
        "batch": len(R),
        "target": target if isinstance(target, str) else target.tolist(),
        "prediction": R.prediction.tolist(),
        "value": R.value.tolist(),
        "against": runs,
        "labels": {k: list(v) for k, v in R.inner.names.items()},
        "layers": [[row.name, list(row.shape)] for row in R.layers],
        "check": check.describe(),
        "model_digest": R.inner.origin.digest(),
    }

"""A Python script that asks for the numbers of a view again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nrm.measure.show import options_text
from nrm.report.columns import Pick, Shown
from nrm.report.pictures import Canvas

if TYPE_CHECKING:
    from nrm.measure import Measure


def script(R: Measure, canvas: Canvas, shown: Sequence[Shown], nodes: int, opening: str | None = None) -> str:
    """The lines; ``opening`` makes ``model`` and ``inputs``, which the reader supplies otherwise."""
    lines = ["import nrm", "import torch", "from torch import nn", ""]
    lines += [opening or "# model: the network; inputs: what was explained, a batch of one"]
    lines += [f"R = nrm.measure(model, inputs, target={_target(R)}, {options_text(R._network)})"]
    x = f"R[{canvas.layer.name!r}]" + (".positions" if canvas.variable is not canvas.layer else "")
    lines += [f"heat = R({x})", "print(R.check())", ""]
    if not shown:
        return "\n".join([*lines, "R.report('report.html')", ""])
    coarse = [s.pick for s in shown if s.pick.by == "groups"]
    if coarse:
        parts = ", ".join(f"R[{p.layer!r}].channels" for p in coarse)
        lines.append(f"coarse = iter(nrm.coarsen(R, {parts}, k={nodes}))")
    lines += ["columns = [", *(f"    {_column(s.pick, nodes)}," for s in shown), "]"]
    for i, s in enumerate(shown):
        blocks = ", ".join(str(n.block) for n in s.column.nodes if n.block is not None)
        lines.append(f"marginal_{i} = R(columns[{i}]).flatten(1)[0, [{blocks}]]  # the nodes of column {i}")
    lines += [
        "", "# a ribbon is the joint relevance of two nodes; with the input it is a heat map",
        f"pair = R({_block(0, shown)}, {_block(1, shown)})",
        f"heat_of_pair = R({x}, {_block(0, shown)}, {_block(1, shown)})",
        "", f"R.report('report.html', layers=columns, nodes={nodes})", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _target(R: Measure) -> str:
    if isinstance(R.target, str):
        return repr(R.target)
    index = R.target[0].tolist() if R._target.shape else None
    return repr(tuple(index) if isinstance(index, list) else index)


def _column(pick: Pick, nodes: int) -> str:
    if pick.by == "groups":
        return "next(coarse)"
    if pick.by == "clusters":
        return f"nrm.cluster(R, {pick.layer!r}, k={nodes})"
    return f"R[{pick.layer!r}].{pick.by}"


def _block(column: int, shown: Sequence[Shown]) -> str:
    """The strongest block of a column."""
    blocks = [n for n in shown[column].column.nodes if n.block is not None]
    return f"columns[{column}][{max(blocks, key=lambda n: n.height).block if blocks else 0}]"

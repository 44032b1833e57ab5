"""A Python script that asks for the numbers of a view again: its columns, and what is chosen or asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nrm.measure import options_text
from nrm.report.columns import Shown
from nrm.report.pictures import Canvas

if TYPE_CHECKING:
    from nrm.measure import Measure

UNPACK = """
def unpack(text, shape):  # a region of the picture, kept as bits
    bits = np.unpackbits(np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8))
    return torch.from_numpy(bits[: int(np.prod(shape))].reshape(shape)).bool()
"""


class Script:
    """The lines of one view; ``opening`` makes ``model``, ``inputs`` (and ``reference``), else the reader does."""

    def __init__(
        self, R: Measure, canvas: Canvas, shown: Sequence[Shown], nodes: int, opening: str | None = None
    ) -> None:
        self._R, self._shown, self._nodes = R, shown, nodes
        against = "" if R.inner.tape.runs is None else "; reference: what it is compared with"
        self._opening = opening or f"# model: the network; inputs: what was explained, a batch of one{against}"
        self._x = f"R[{canvas.layer.name!r}]" + (".positions" if canvas.variable is not canvas.layer else "")

    def view(self) -> str:
        """The numbers of the columns, and their strongest pair."""
        lines = self._head()
        if not self._shown:
            return "\n".join([*lines, "R.report('report.html')", ""])
        for i, s in enumerate(self._shown):
            blocks = ", ".join(str(n.block) for n in s.column.nodes if n.block is not None)
            lines.append(f"marginal_{i} = R(columns[{i}]).flatten(1)[0, [{blocks}]]  # the nodes of column {i}")
        pair = ", ".join(f"columns[{i}][{_strongest(s)}]" for i, s in enumerate(self._shown[:2]))
        lines += [
            "", "# a ribbon is the joint relevance of two nodes; with the input it is a heat map",
            f"pair = R({pair})", f"heat_of_pair = R({self._x}, {pair})",
            "", f"R.report('report.html', layers=columns, nodes={self._nodes})", "",
        ]  # fmt: skip
        return "\n".join(lines)

    def selection(self, chosen: Sequence[tuple[int, int]]) -> str:
        """The script with the joint relevance of chosen nodes, and its heat map."""
        passed, bypassed = [], []
        for c in sorted({c for c, _ in chosen}):
            texts = [text for column, n in chosen if column == c and (text := self.node(c, n)) is not None]
            if texts:
                passed.append(" | ".join(texts))
            else:
                bypassed.append(f"columns[{c}].layer.all")
        if bypassed:
            events = [*(f"nrm.visits({p})" for p in passed), *(f"~nrm.visits({p})" for p in bypassed)]
            asked = " & ".join(events)
        else:
            asked = ", ".join(passed)
        return "\n".join([*self._head(), f"share = R({asked})", f"heat_of_selection = R({self._x}, {asked})", ""])

    def removal(self, chosen: Sequence[tuple[int, int]], value: str) -> str:
        """The script with what the network computes without the chosen nodes."""
        sets = [" | ".join(self.node(column, n) or "" for column, n in chosen if column == c)
                for c in sorted({c for c, _ in chosen})]  # fmt: skip
        asked = ", ".join(sets)
        more = {"zero": "", "reference": ", value='reference'"}.get(value, ", value=values")
        note = [] if "values" not in more else ["# values: what takes the place of the removed neurons, for each layer"]
        return "\n".join([
            *self._head(), f"share = R({asked})", *note, f"lost = nrm.evaluate.occlusion(R, {asked}{more}) / R.value",
            f"outputs = nrm.evaluate.remove(R, {asked}{more})", "",
        ])  # fmt: skip

    def formula(self, text: str, sets: Mapping[str, Sequence[str]]) -> str:
        """The script with the relevance of a formula, whose sets are given as expressions."""
        named = [f"    {name!r}: [{', '.join(lines)}]," for name, lines in sets.items()]
        helper = ["import base64", "import zlib", "import numpy as np", UNPACK]
        unpacks = any("unpack(" in line for lines in sets.values() for line in lines)
        return "\n".join([
            *(helper if unpacks else []), *self._head(), "sets = {", *named, "}",
            f"event = nrm.query({text!r}, sets)", "share = R(event)", f"heat_of_formula = R({self._x}, event)", "",
        ])  # fmt: skip

    def node(self, c: int, n: int) -> str | None:
        """An expression for the neurons of a node; None for what passes elsewhere."""
        nodes = self._shown[c].column.nodes
        if nodes[n].kind == "elsewhere":
            return None
        if nodes[n].block is not None:
            return f"columns[{c}][{nodes[n].block}]"
        others = " | ".join(f"columns[{c}][{node.block}]" for node in nodes if node.block is not None)
        return f"(columns[{c}].layer.all - ({others}))" if others else f"columns[{c}].layer.all"

    def _head(self) -> list[str]:
        lines = ["import nrm", "import torch", "from torch import nn", "", self._opening]
        lines += [f"R = nrm.measure(model, inputs, target={_target(self._R)}, {options_text(self._R.inner.network)})"]
        lines += [f"heat = R({self._x})", "print(R.check())", ""]
        if not self._shown:
            return lines
        coarse = [s.pick for s in self._shown if s.pick.by == "groups"]
        if coarse:
            parts = ", ".join(f"R[{p.layer!r}].channels" for p in coarse)
            lines.append(f"coarse = iter(nrm.coarsen(R, {parts}, k={self._nodes}))")
        return [*lines, "columns = [", *(f"    {_column(s, self._nodes)}," for s in self._shown), "]"]


def _target(R: Measure) -> str:
    if isinstance(R.target, str):
        return repr(R.inner.target.spread)  # a word, or a set of outputs as it is written in Python
    index = R.target[0].tolist() if R.inner.target.shape else None
    return repr(tuple(index) if isinstance(index, list) else index)


def _column(shown: Shown, nodes: int) -> str:
    pick = shown.pick
    if pick.by == "groups":
        text = "next(coarse)"
    elif pick.by == "clusters":
        text = f"nrm.cluster(R, {pick.layer!r}, k={nodes})"
    else:
        text = f"R[{pick.layer!r}].{pick.by}"
    several = [str(members) for members in shown.joined.values() if len(members) > 1]
    return f"nrm.merge(R, {text}, {', '.join(several)})" if several else text


def _strongest(shown: Shown) -> int:
    """The strongest block of a column."""
    blocks = [n for n in shown.column.nodes if n.block is not None]
    return (max(blocks, key=lambda n: n.height).block or 0) if blocks else 0

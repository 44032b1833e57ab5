"""Attention from token to token: what every head of a layer carries from each key to each query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nrm.errors import NrmError, QuestionError
from nrm.largest import largest
from nrm.questions import Layer
from nrm.report.pictures import pack_map

if TYPE_CHECKING:
    from nrm.measure import Measure

LONGEST, LISTED = 256, 6
"""The most tokens whose pairs are drawn, and how many pairs of a head are listed."""


def attention_layers(R: Measure) -> list[str]:
    """The modules whose attention can be asked from token to token."""
    names = dict.fromkeys(row.name.partition("/")[0] for row in R.layers if "/" in row.name)
    found = [name for name in names if name and _attends(R, name)]
    return [name for name in found if not any(other.startswith(f"{name}.") for other in found)]


def _attends(R: Measure, name: str) -> bool:
    try:
        return R.inner.places.attention(Layer(name).edges.layer) is not None
    except NrmError:
        return False


def attention_maps(R: Measure, name: str) -> dict[str, Any]:
    """The relevance of all edges of one layer, ``(heads, queries, keys)``, as plain data, with the strongest of each.

    A head's share is the sum of its map.
    """
    if name not in attention_layers(R):
        raise QuestionError("no layer with attention", got=repr(name)[:80], expected=", ".join(attention_layers(R)))
    edges = R(R[name].edges)[0].double().cpu()
    if max(edges.shape[1:]) > LONGEST:
        raise QuestionError(
            "too many tokens to draw", got=f"{edges.shape[1]} x {edges.shape[2]}", expected=f"at most {LONGEST}",
            hint=f"R(R[{name!r}].edges) has all of them",
        )  # fmt: skip
    heads = []
    for head in edges:
        best = [divmod(n, head.shape[1]) for n in largest(head.abs().flatten(), LISTED).tolist()]
        pairs = [{"query": q, "key": k, "share": float(head[q, k])} for q, k in best if bool(head[q, k] != 0)]
        heads.append({"map": pack_map(head.numpy(), None), "share": float(head.sum()), "pairs": pairs})
    return {"layer": name, "heads": heads}

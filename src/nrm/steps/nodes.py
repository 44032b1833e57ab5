"""The nodes of a relevance network, and the links between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from nrm.steps.maps import Map

PLAIN, BRANCH, COLUMN, DRAIN = "plain", "branch", "column", "drain"
"""The kinds of nodes: a tensor by itself, its part of a sum's columns, the columns themselves, where walks begin."""


class Link(NamedTuple):
    """A map from a lower node."""

    to: int
    map: Map


@dataclass(eq=False)
class RelevanceNode:
    """A node of the relevance network: the tensor it belongs to, and its links to nodes below."""

    index: int
    tensor: int
    kind: str
    port: str = ""
    links: list[Link] = field(default_factory=list)
    readers: int = 0

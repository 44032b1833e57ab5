"""Where walks begin: inputs, embeddings, constants; and calls without a rule, which relevance must not reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nrm.capture import Node, Source, Unknown
from nrm.steps.family import Family, family

if TYPE_CHECKING:
    from nrm.steps.network import Network


@family(Source, Unknown)
class Sources(Family):
    """Nothing lies below."""

    def connect(self, network: Network, node: Node) -> None:
        return

    def is_nonnegative(self, network: Network, node: Node) -> bool:
        return True

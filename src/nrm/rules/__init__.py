"""From ops and activations to the relevance network: rules, composites, fused columns."""

from nrm.rules.composites import NAMES, Composite, composite, resolve
from nrm.rules.network import Arrivals, Columns, Delivery, Network, Packet
from nrm.rules.rules import (
    LRP0,
    AlphaBeta,
    EntryEpsilon,
    Epsilon,
    Flat,
    Gamma,
    Pass,
    Product,
    Rule,
    Sum,
    WSquare,
    ZBox,
    ZPlus,
)

__all__ = [
    "LRP0",
    "NAMES",
    "AlphaBeta",
    "Arrivals",
    "Columns",
    "Composite",
    "Delivery",
    "EntryEpsilon",
    "Epsilon",
    "Flat",
    "Gamma",
    "Network",
    "Packet",
    "Pass",
    "Product",
    "Rule",
    "Sum",
    "WSquare",
    "ZBox",
    "ZPlus",
    "composite",
    "resolve",
]

"""From ops and activations to the relevance network: rules, composites, fused columns."""

from nrm.rules.between import Between, Gradient, IntegratedGradients, Occlusion, Shapley
from nrm.rules.coarse import coarse_tape
from nrm.rules.composites import NAMES, Composite, composite, resolve
from nrm.rules.density import EVERYTHING, Arrivals, Change, Delivery, Packet, Part, Values, outer, total_of
from nrm.rules.network import Network
from nrm.rules.rules import (
    LRP0,
    AlphaBeta,
    EntryEpsilon,
    Epsilon,
    Factor,
    Flat,
    Gamma,
    Key,
    Pass,
    Product,
    Rule,
    SoftmaxRule,
    Sum,
    WSquare,
    ZBox,
    ZPlus,
)

__all__ = [
    "EVERYTHING",
    "LRP0",
    "NAMES",
    "AlphaBeta",
    "Arrivals",
    "Between",
    "Change",
    "Composite",
    "Delivery",
    "EntryEpsilon",
    "Epsilon",
    "Factor",
    "Flat",
    "Gamma",
    "Gradient",
    "IntegratedGradients",
    "Key",
    "Network",
    "Occlusion",
    "Packet",
    "Part",
    "Pass",
    "Product",
    "Rule",
    "Shapley",
    "SoftmaxRule",
    "Sum",
    "Values",
    "WSquare",
    "ZBox",
    "ZPlus",
    "coarse_tape",
    "composite",
    "outer",
    "resolve",
    "total_of",
]

"""Steps: from ops, values and rules to the relevance network, nodes with units and the linear maps between them."""

from nrm.steps.assignment import Assignment
from nrm.steps.columns import Columns
from nrm.steps.drains import PORTS, drain_shape
from nrm.steps.families import Family, family
from nrm.steps.maps import Factored, Local, Map, Softmaxed, Summed
from nrm.steps.messages import Amounts, Arrivals, Delivery, Pairing, StackChange, outer, total_of
from nrm.steps.network import Network
from nrm.steps.nodes import COLUMN, DRAIN, Link, RelevanceNode

__all__ = [
    "COLUMN",
    "DRAIN",
    "PORTS",
    "Amounts",
    "Arrivals",
    "Assignment",
    "Columns",
    "Delivery",
    "Factored",
    "Family",
    "Link",
    "Local",
    "Map",
    "Network",
    "Pairing",
    "RelevanceNode",
    "Softmaxed",
    "StackChange",
    "Summed",
    "drain_shape",
    "family",
    "outer",
    "total_of",
]

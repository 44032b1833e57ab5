"""Exact search for the flows and walks that carry most of the relevance; and which blocks belong together."""

from nrm.search.coarsening import Coarsening, coarsen, pair_information
from nrm.search.connected import Neighbours as Neighbours
from nrm.search.flows import Flow, Flows, find_flows, table_cost as table_cost
from nrm.search.found import Certified as Certified, Found, read_count as read_count
from nrm.search.grouping import blocks_of as blocks_of, cluster, grouped_by as grouped_by, merge
from nrm.search.ranking import BestFlows as BestFlows, Request
from nrm.search.sides import Side
from nrm.search.subgraphs import (
    InnerWalks as InnerWalks,
    NodeGraph as NodeGraph,
    NodeSite as NodeSite,
    Subgraph,
    Subgraphs,
    SubgraphSearch as SubgraphSearch,
)
from nrm.search.walks import Walk, WalkStep, find_walks

__all__ = [
    "Coarsening",
    "Flow",
    "Flows",
    "Found",
    "Request",
    "Side",
    "Subgraph",
    "Subgraphs",
    "Walk",
    "WalkStep",
    "cluster",
    "coarsen",
    "find_flows",
    "find_walks",
    "merge",
    "pair_information",
]

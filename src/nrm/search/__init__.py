"""Exact search for the flows and walks that carry most of the relevance; and which blocks belong together."""

from nrm.search.coarsening import Coarsening, coarsen, pair_information
from nrm.search.flows import Flow, Flows, find_flows, table_cost as table_cost
from nrm.search.found import Found, read_count as read_count
from nrm.search.grouping import blocks_of as blocks_of, cluster, grouped_by as grouped_by, merge
from nrm.search.ranking import BestFlows as BestFlows, Request
from nrm.search.sides import Side
from nrm.search.walks import Walk, WalkStep, find_walks

__all__ = [
    "Coarsening",
    "Flow",
    "Flows",
    "Found",
    "Request",
    "Side",
    "Walk",
    "WalkStep",
    "cluster",
    "coarsen",
    "find_flows",
    "find_walks",
    "merge",
    "pair_information",
]

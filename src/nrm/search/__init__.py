"""Exact search for the flows and walks that carry most of the relevance; and which blocks belong together."""

from nrm.search.coarsening import Coarsening, coarsen, pair_information
from nrm.search.flows import Flow, Flows, find_flows
from nrm.search.found import Found
from nrm.search.grouping import cluster
from nrm.search.ranking import Request

__all__ = [
    "Coarsening",
    "Flow",
    "Flows",
    "Found",
    "Request",
    "cluster",
    "coarsen",
    "find_flows",
    "pair_information",
]

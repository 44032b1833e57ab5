"""Exact search: the flows and walks that carry most of the relevance."""

from nrm.search.flows import Flow, Flows, find_flows
from nrm.search.found import Found
from nrm.search.ranking import Request

__all__ = ["Flow", "Flows", "Found", "Request", "find_flows"]

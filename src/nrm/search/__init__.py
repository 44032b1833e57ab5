"""Exact search on the measure: the walks with the largest relevance."""

from nrm.search.found import Found
from nrm.search.walks import Step, Walk, find_walks

__all__ = ["Found", "Step", "Walk", "find_walks"]

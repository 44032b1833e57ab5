"""Search over questions: which blocks belong together."""

from nrm.search.coarsening import Coarsening, coarsen, pair_information
from nrm.search.grouping import cluster

__all__ = ["Coarsening", "cluster", "coarsen", "pair_information"]

"""Judging explanations by intervention: joint contributions, removal, correlation, and baselines to compare with."""

from nrm.evaluate.baselines import METHODS, scores
from nrm.evaluate.comparison import Agreement, Comparison, compare
from nrm.evaluate.edge_scores import (
    CLEAN as CLEAN,
    CONTRAST as CONTRAST,
    EDGE_METHODS,
    GRADIENTS as GRADIENTS,
    EdgeScores,
    edge_scores,
)
from nrm.evaluate.intervention import contribution, each, occlusion, remove
from nrm.evaluate.patched import SIZES as SIZES, CircuitCurve, Patched, PatchedNodes, area as area
from nrm.evaluate.patching import patch, patch_nodes, patched_shares as patched_shares
from nrm.evaluate.statistics import Correlation, TopSums, interval, merge_means as merge_means, pearson, sc_k

__all__ = [
    "EDGE_METHODS",
    "METHODS",
    "Agreement",
    "CircuitCurve",
    "Comparison",
    "Correlation",
    "EdgeScores",
    "Patched",
    "PatchedNodes",
    "TopSums",
    "compare",
    "contribution",
    "each",
    "edge_scores",
    "interval",
    "occlusion",
    "patch",
    "patch_nodes",
    "pearson",
    "remove",
    "sc_k",
    "scores",
]

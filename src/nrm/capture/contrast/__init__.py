"""Contrasts: two runs of a model as one tape of differences, in which every step is exact and linear."""

from nrm.capture.contrast.splits import OWN
from nrm.capture.contrast.step import Pair, Step
from nrm.capture.contrast.tape import contrast

__all__ = ["OWN", "Pair", "Step", "contrast"]

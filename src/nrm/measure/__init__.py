"""The measure, its places and targets; the certificate."""

from nrm.measure.check import Check
from nrm.measure.difference import Difference
from nrm.measure.layers import Cut, LayerRow, LayerTable
from nrm.measure.measure import Measure, SampleMeasure, measure

__all__ = ["Check", "Cut", "Difference", "LayerRow", "LayerTable", "Measure", "SampleMeasure", "measure"]

"""Layers, sets and partitions; the measure and its questions; the certificate."""

from nrm.measure.check import Check
from nrm.measure.layers import Cut, LayerRow, LayerTable
from nrm.measure.measure import Measure, SampleMeasure, measure
from nrm.measure.values import Layer, Partition, Set

__all__ = ["Check", "Cut", "Layer", "LayerRow", "LayerTable", "Measure", "Partition", "SampleMeasure", "Set", "measure"]

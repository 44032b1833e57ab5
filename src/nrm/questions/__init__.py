"""Layers, sets, partitions and formulas; how a question about them is planned and answered by messages."""

from nrm.questions.formula import Formula, visits
from nrm.questions.query import query
from nrm.questions.values import Layer, Partition, Set, Stack, stack

__all__ = ["Formula", "Layer", "Partition", "Set", "Stack", "query", "stack", "visits"]

"""Layers, sets and partitions; how a question about them is planned and answered by messages."""

from nrm.questions.values import Layer, Partition, Set, Stack, stack

__all__ = ["Layer", "Partition", "Set", "Stack", "stack"]

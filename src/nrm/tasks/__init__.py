"""Tasks of circuit finding: pairs of inputs with answers, read or made, and networks whose circuit is known."""

from nrm.tasks.accuracy import ENOUGH as ENOUGH, Accuracy
from nrm.tasks.greater import greater_than
from nrm.tasks.pairs import PairBatch, Pairs, TaskPair
from nrm.tasks.reading import read_pairs

__all__ = ["Accuracy", "PairBatch", "Pairs", "TaskPair", "greater_than", "read_pairs"]

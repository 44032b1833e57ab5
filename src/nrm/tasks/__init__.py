"""Tasks of circuit finding: pairs of inputs with answers, read or made, and networks whose circuit is known."""

from nrm.tasks.accuracy import ENOUGH as ENOUGH, Accuracy
from nrm.tasks.greater import greater_than
from nrm.tasks.learned import induction
from nrm.tasks.pairs import PairBatch, Pairs, TaskPair
from nrm.tasks.programs import FELT as FELT, Program, programs
from nrm.tasks.ranking import auroc
from nrm.tasks.reading import read_pairs
from nrm.tasks.transformer import SmallTransformer, TransformerSize

__all__ = [
    "Accuracy", "PairBatch", "Pairs", "Program", "SmallTransformer", "TaskPair", "TransformerSize", "auroc",
    "greater_than", "induction", "programs", "read_pairs",
]  # fmt: skip

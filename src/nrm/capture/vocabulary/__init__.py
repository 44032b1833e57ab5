"""How each torch function is read: one builder per meaning, with the signature of the function it reads.

A builder gets the call and the arguments as the user gave them and returns the steps of the call: for each result
its op and its inputs. Functions that are made of others (a gated linear unit, a power pooling) are run as those.
"""

from nrm.capture.vocabulary import (
    arithmetic,
    attention,
    lengths,
    linear,
    losses,
    movement,
    norms,
    pooling,
    recurrent,
    regions,
    scatter,
    sequences,
)
from nrm.capture.vocabulary.composed import COMPOSED
from nrm.capture.vocabulary.reading import VOCABULARY, Steps

__all__ = [
    "COMPOSED",
    "VOCABULARY",
    "Steps",
    "arithmetic",
    "attention",
    "lengths",
    "linear",
    "losses",
    "movement",
    "norms",
    "pooling",
    "recurrent",
    "regions",
    "scatter",
    "sequences",
]

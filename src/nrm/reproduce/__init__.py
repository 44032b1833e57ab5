"""The paper's experiments, each by one command: ``nrm reproduce mlp``, or :func:`reproduce` from Python."""

from nrm.reproduce.run import EXPERIMENTS, reproduce
from nrm.reproduce.store import Unit as Unit

__all__ = ["EXPERIMENTS", "reproduce"]

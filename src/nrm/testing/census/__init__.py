"""A census: every kind of model that people have, measured, refused by name, or found to be wrong.

Lists of models come from the packages that are installed. Each is made small, with random weights and inputs, and
judged in a process of its own; what was found is kept in a file, from which the table of the docs is written.
"""

from __future__ import annotations

from nrm.testing.census import graphs, huggingface, layers, pictures
from nrm.testing.census.judge import CensusRow, judge
from nrm.testing.census.running import alone, read, run
from nrm.testing.census.subject import Cases, CensusCase, Subject

LISTS = {
    layers.OF: layers.cases, pictures.TORCHVISION: pictures.torchvision_cases, pictures.TIMM: pictures.timm_cases,
    graphs.OF: graphs.cases, huggingface.OF: huggingface.cases,
}  # fmt: skip
"""Where the cases of every list come from."""


def cases_of(name: str) -> Cases:
    """The cases of a list."""
    return LISTS[name]()


__all__ = ["LISTS", "Cases", "CensusCase", "CensusRow", "Subject", "alone", "cases_of", "judge", "read", "run"]

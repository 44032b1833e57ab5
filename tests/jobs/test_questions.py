"""The questions of jobs: what they say is in their digest."""

from __future__ import annotations

from dataclasses import dataclass, replace

import nrm
from nrm.jobs.questions import digest_of
from nrm.questions import Question, Shares


@dataclass(frozen=True)
class Counted(Question):
    """A kind of question that the digest was not written for."""

    counted: bool = False


def test_questions_that_differ_in_anything_have_other_digests() -> None:
    a, b = nrm.layer("a").channel(3), nrm.layer("b").channels
    plain = Question((a,))
    others = [
        Question((b,)),
        replace(plain, given=(b,)),
        replace(plain, weights=Shares((a,))),
        replace(plain, apart=True),
        Counted((a,), counted=True),
    ]
    digests = [digest_of(question) for question in (plain, *others)]
    assert len(set(digests)) == len(digests)
    assert digest_of(Question.read([nrm.layer("a").channel(3)])) == digest_of(plain)

"""The area under the ROC curve, beside its definition: every true entry against every other one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from nrm.errors import InputError
from nrm.tasks import auroc

ENTRIES = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30)


@given(ENTRIES)
def test_auroc_is_the_share_of_pairs_in_order(entries: list[tuple[int, bool]]) -> None:
    true, other = ([score for score, side in entries if side == want] for want in (True, False))
    scores, truth = torch.tensor([float(e[0]) for e in entries]), torch.tensor([e[1] for e in entries])
    if not true or not other:
        with pytest.raises(InputError, match="nothing to be told apart"):
            auroc(scores, truth)
        return
    want = sum((a > b) + (a == b) / 2 for a in true for b in other) / (len(true) * len(other))
    assert auroc(scores, truth) == pytest.approx(want, abs=1e-12)
    assert auroc(scores[None], truth[None]) == auroc(scores, truth)
    assert auroc(-scores, truth) == pytest.approx(1 - want, abs=1e-12)
    assert auroc(scores.exp(), truth) == pytest.approx(want, abs=1e-12)


def test_bad_input() -> None:
    scores = torch.tensor([1.0, 2.0])
    with pytest.raises(InputError, match="do not match"):
        auroc(scores, torch.tensor([True, False, True]))
    with pytest.raises(InputError, match="do not match"):
        auroc(scores, torch.tensor([1, 0]))
    with pytest.raises(InputError, match="not a number"):
        auroc(torch.tensor([1.0, torch.nan]), torch.tensor([True, False]))

"""What a table will cost, said before it is computed."""

from __future__ import annotations

import warnings

from nrm.errors import CostWarning
from nrm.questions import Plan, TrackedPlan

PASSES = 50.0
"""More forward passes than this are announced,"""
NOTICED = 2e10
"""if they are more floating-point operations than this, which take about a second: nobody waits for small networks."""


def warn_of_cost(plan: Plan | TrackedPlan, stacklevel: int) -> None:
    """Says what a long table will cost, and what to ask instead, before anything of it is computed."""
    passes = plan.flops / max(plan.forward, 1.0)
    if passes <= PASSES or plan.flops <= NOTICED:
        return
    text = (
        f"this table costs about {passes:.0f} forward passes.\n{plan}\n"
        "Cheaper: R.flows(..., k=10) searches for the largest entries alone; some blocks (a.channels[:64]) or groups of"
        " them (a.groups(labels), nrm.cluster) make the table smaller; neighbouring layers take one contraction."
        " R.plan(...) tells the cost beforehand, R.each(...) answers block by block."
    )
    warnings.warn(text, CostWarning, stacklevel=stacklevel + 1)

"""What a table will cost, said before it is computed."""

from __future__ import annotations

from nrm.errors import CostWarning, warn
from nrm.questions import Plan

PASSES = 50.0
"""More forward passes than this are announced,"""
NOTICED = 2e10
"""if they are more floating-point operations than this, which take about a second: nobody waits for small networks."""


def warn_of_cost(plan: Plan) -> None:
    """Says what a long table will cost, and what to ask instead, before anything of it is computed."""
    if plan.passes <= PASSES or plan.flops <= NOTICED:
        return
    text = (
        f"this table costs about {plan.passes:.0f} forward passes.\n{plan}\n"
        "Cheaper: R.flows(..., k=10) searches for the largest entries alone; some blocks (a.channels[:64]) or groups of"
        " them (a.groups(labels), nrm.cluster) make the table smaller; neighbouring layers take one contraction."
        " R.plan(...) tells the cost beforehand, R.each(...) answers block by block."
    )
    warn(text, CostWarning)

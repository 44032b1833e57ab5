"""Families of steps: what each kind of op does to densities and amounts, one file per family.

A family says which maps an op builds from its values and its rule. A new family is one file: a subclass of
:class:`Family` for its ops, registered by :func:`family`.
"""

from nrm.steps.families import elementwise, exact, linear, product, selection, source, sums
from nrm.steps.family import Family, family, family_of

__all__ = ["Family", "elementwise", "exact", "family", "family_of", "linear", "product", "selection", "source", "sums"]

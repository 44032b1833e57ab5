"""The explorer: a local page on which a person looks at the decisions of a network, and asks further by clicking.

``nrm.explore(model, "photos/", transform=..., labels=...)`` serves it on this machine only. Needs the extra ``web``.
"""

from nrm.explorer.items import batched as batched
from nrm.explorer.serve import Explorer, explore, explore_measure as explore_measure

__all__ = ["Explorer", "explore"]

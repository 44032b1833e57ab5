"""Linear maps as values: they can be applied, transposed and given other weights; they know nothing of networks.

Every step of a relevance measure is built from such maps. A map acts on tensors with one leading axis, the
*stack*: many messages are carried at once by folding them there.
"""

from nrm.operators.convolution import Convolution, FlatConvolution
from nrm.operators.maps import Centering, Dense, Function, Identity, LinearMap, Matmul, Reduce
from nrm.operators.movement import Expand, Gather, Permute, Place, Reshape, Slice
from nrm.operators.tables import channel_table, has_table

__all__ = [
    "Centering",
    "Convolution",
    "Dense",
    "Expand",
    "FlatConvolution",
    "Function",
    "Gather",
    "Identity",
    "LinearMap",
    "Matmul",
    "Permute",
    "Place",
    "Reduce",
    "Reshape",
    "Slice",
    "channel_table",
    "has_table",
]

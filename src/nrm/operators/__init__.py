"""Linear maps as values: they can be applied, transposed and given other weights; they know nothing of networks.

Every step of a relevance measure is built from such maps. A map acts on tensors with one leading axis, the
*stack*: many messages are carried at once by folding them there.
"""

from nrm.operators.by_channel import apply_by_channel, transpose_by_channel
from nrm.operators.by_type import ByType as ByType
from nrm.operators.convolution import Convolution, FlatConvolution, convolution_in
from nrm.operators.dense import Dense
from nrm.operators.fields import Field, WeightRows, field_of, pick, sources
from nrm.operators.jacobian import Ends, Jacobian, PerSample
from nrm.operators.late import LateWeight, loaded
from nrm.operators.maps import (
    Around as Around,
    Centering,
    Composed,
    Function,
    Grouped,
    GroupSum,
    Identity,
    LateMatmul,
    LinearMap,
    Matmul,
    Reduce,
    WeightChange as WeightChange,
)
from nrm.operators.movement import Expand, Gather, Masking, Movement, Permute, Place, Reshape, Scatter, Slice, place_all
from nrm.operators.tables import channel_table, has_table
from nrm.operators.weighted import WeightedSum

__all__ = [
    "Centering",
    "Composed",
    "Convolution",
    "Dense",
    "Ends",
    "Expand",
    "Field",
    "FlatConvolution",
    "Function",
    "Gather",
    "GroupSum",
    "Grouped",
    "Identity",
    "Jacobian",
    "LateMatmul",
    "LateWeight",
    "LinearMap",
    "Masking",
    "Matmul",
    "Movement",
    "PerSample",
    "Permute",
    "Place",
    "Reduce",
    "Reshape",
    "Scatter",
    "Slice",
    "WeightRows",
    "WeightedSum",
    "apply_by_channel",
    "channel_table",
    "convolution_in",
    "field_of",
    "has_table",
    "loaded",
    "pick",
    "place_all",
    "sources",
    "transpose_by_channel",
]

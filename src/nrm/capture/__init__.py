"""From a model and its real inputs to a tape of ops on our own graph; the model is never touched again."""

from nrm.capture.arguments import tensors_in
from nrm.capture.axes import through as through
from nrm.capture.call import Call
from nrm.capture.capture import ANEW as ANEW, capture, own_output, script_of as script_of
from nrm.capture.contrast import Pair, Step, contrast
from nrm.capture.graphs import Graphs as Graphs, is_record as is_record
from nrm.capture.guard import plain_execution, uncollected as uncollected
from nrm.capture.heads import (
    AttentionStep as AttentionStep,
    ReadBy as ReadBy,
    attention_reads as attention_reads,
    attention_step as attention_step,
)
from nrm.capture.names import NONNEGATIVE
from nrm.capture.ops import (
    Combine,
    Exact,
    Linear,
    Multiply,
    Op,
    OwnOp,
    Piece,
    Pointwise,
    Select,
    Singular as Singular,
    Softmax,
    Source,
    Term,
    Unknown,
    in_each_run,
)
from nrm.capture.register import register
from nrm.capture.replay import Deviation, Segment, find_deviation, reads, replay
from nrm.capture.rows import RowNodes as RowNodes, row_nodes as row_nodes
from nrm.capture.script import CallScript as CallScript
from nrm.capture.several import kind_of_input as kind_of_input, patch_square as patch_square
from nrm.capture.stand_ins import standing_in as standing_in, unwrap as unwrap
from nrm.capture.stream import (
    ResidualStream as ResidualStream,
    StreamBranch as StreamBranch,
    StreamSegment as StreamSegment,
    find_stream as find_stream,
)
from nrm.capture.tape import Node, Tape, unknown_layer
from nrm.capture.unbatched import capture_batch

__all__ = [
    "NONNEGATIVE",
    "Call",
    "Combine",
    "Deviation",
    "Exact",
    "Linear",
    "Multiply",
    "Node",
    "Op",
    "OwnOp",
    "Pair",
    "Piece",
    "Pointwise",
    "Segment",
    "Select",
    "Softmax",
    "Source",
    "Step",
    "Tape",
    "Term",
    "Unknown",
    "capture",
    "capture_batch",
    "contrast",
    "find_deviation",
    "in_each_run",
    "own_output",
    "plain_execution",
    "reads",
    "register",
    "replay",
    "tensors_in",
    "unknown_layer",
]

"""From a model and its real inputs to a tape of ops on our own graph; the model is never touched again."""

from nrm.capture.arguments import tensors_in
from nrm.capture.axes import through as through
from nrm.capture.call import Call
from nrm.capture.capture import capture, own_output, unwrap as unwrap
from nrm.capture.guard import plain_execution
from nrm.capture.names import NONNEGATIVE
from nrm.capture.ops import Combine, Linear, Multiply, Op, OwnOp, Pointwise, Select, Softmax, Source, Term, Unknown
from nrm.capture.register import register
from nrm.capture.replay import Deviation, Segment, computed, find_deviation, reads, replay
from nrm.capture.tape import Node, Tape, unknown_layer
from nrm.capture.unbatched import capture_batch

__all__ = [
    "NONNEGATIVE",
    "Call",
    "Combine",
    "Deviation",
    "Linear",
    "Multiply",
    "Node",
    "Op",
    "OwnOp",
    "Pointwise",
    "Segment",
    "Select",
    "Softmax",
    "Source",
    "Tape",
    "Term",
    "Unknown",
    "capture",
    "capture_batch",
    "computed",
    "find_deviation",
    "own_output",
    "plain_execution",
    "reads",
    "register",
    "replay",
    "tensors_in",
    "unknown_layer",
]

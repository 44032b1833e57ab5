"""Layers, sets, partitions and formulas; how a question about them is planned and answered by messages."""

from nrm.questions.adjacent import contractible as contractible
from nrm.questions.answer import (
    Answerer as Answerer,
    BlockNumbers as BlockNumbers,
    PlainRoute as PlainRoute,
    Progress as Progress,
    ordered as ordered,
)
from nrm.questions.attention import AttentionRoute as AttentionRoute, attention_frame as attention_frame
from nrm.questions.circuit import CircuitRoute as CircuitRoute, feeds as feeds
from nrm.questions.direct import (
    CONSTANT as CONSTANT,
    EMBEDDING as EMBEDDING,
    DirectRoute as DirectRoute,
    StreamEnd as StreamEnd,
    at_one_site as at_one_site,
    find_readers as find_readers,
    find_writers as find_writers,
    masks_of as masks_of,
)
from nrm.questions.formula import ATOMS as ATOMS, Formula, visits
from nrm.questions.frame import Blocks as Blocks, Frame as Frame
from nrm.questions.graph import interaction_graph as interaction_graph
from nrm.questions.kept import Kept as Kept
from nrm.questions.levels import additive_weights as additive_weights, cut_weights as cut_weights
from nrm.questions.plan import (
    BASE as BASE,
    Line as Line,
    Meeting as Meeting,
    Plan as Plan,
    base_lines as base_lines,
    downward as downward,
    plan_stops as plan_stops,
    result_axes as result_axes,
    route_flops as route_flops,
    widest as widest,
)
from nrm.questions.query import query
from nrm.questions.question import (
    Argument as Argument,
    Asked as Asked,
    Question as Question,
    Shares as Shares,
    needs_track as needs_track,
    no_text as no_text,
    spans_steps as spans_steps,
    visited_sets as visited_sets,
)
from nrm.questions.reading import Fixed as Fixed
from nrm.questions.rise import Pushed as Pushed, products_at as products_at
from nrm.questions.steps import (
    pair_table as pair_table,
    steps_of as steps_of,
    steps_visited as steps_visited,
)
from nrm.questions.stops import (
    Stop as Stop,
    axes_of as axes_of,
    frame_at as frame_at,
    in_forward_order as in_forward_order,
    stops_for as stops_for,
)
from nrm.questions.sweep import (
    Base as Base,
    Site as Site,
    base_sweep as base_sweep,
    between as between,
    drain_name as drain_name,
    pull_to as pull_to,
    sweep as sweep,
)
from nrm.questions.track import AnswerNumbers as AnswerNumbers, Track as Track
from nrm.questions.tracked import TrackedRoute as TrackedRoute
from nrm.questions.values import (
    EDGES as EDGES,
    SKIP as SKIP,
    Layer,
    Partition,
    Set,
    Stack,
    read_partitions as read_partitions,
    stack,
)

__all__ = ["Formula", "Layer", "Partition", "Set", "Stack", "query", "stack", "visits"]

"""The measure, its places and targets; the certificate."""

from nrm.measure.average import Average as Average
from nrm.measure.check import CANCELLATION as CANCELLATION, Check
from nrm.measure.checking import (
    PRECISION_RAISE as PRECISION_RAISE,
    PRECISION_WARN as PRECISION_WARN,
    SINK_RAISE as SINK_RAISE,
    SINK_WARN as SINK_WARN,
    VARIATION_WARN as VARIATION_WARN,
)
from nrm.measure.choosing import (
    SATURATED as SATURATED,
    CircuitFinder as CircuitFinder,
    Edges as Edges,
    find_circuit as find_circuit,
    refuse_options as refuse_options,
)
from nrm.measure.circuit import (
    Chain as Chain,
    Circuit,
    CircuitEdge as CircuitEdge,
    end_facts as end_facts,
    node_name as node_name,
    possible_edges as possible_edges,
    read_end as read_end,
)
from nrm.measure.classes import (
    LABEL as LABEL,
    Classes as Classes,
    dataset_names as dataset_names,
    find_class as find_class,
    is_label as is_label,
    match_classes as match_classes,
    named_target as named_target,
    output_names as output_names,
)
from nrm.measure.difference import Difference
from nrm.measure.direct import DirectEdges as DirectEdges
from nrm.measure.estimate import estimate
from nrm.measure.generation import Writing as Writing, generated
from nrm.measure.inner import Inner as Inner
from nrm.measure.inside import CircuitPart as CircuitPart
from nrm.measure.labels import Names as Names, name_of as name_of, shared_names as shared_names
from nrm.measure.layers import Cut, LayerRow, LayerTable
from nrm.measure.living import LivingEdges as LivingEdges
from nrm.measure.loop import Loop as Loop
from nrm.measure.making import measure
from nrm.measure.measure import Measure
from nrm.measure.origin import model_digest as model_digest
from nrm.measure.parts import InputPart, InputParts
from nrm.measure.peaks import (
    Box as Box,
    Fields as Fields,
    block_shape as block_shape,
    last_set as last_set,
    meeting_peaks as meeting_peaks,
    peaks as peaks,
    scaled as scaled,
)
from nrm.measure.planning import Planner as Planner
from nrm.measure.reference import WORDS as WORDS, reference
from nrm.measure.scores import (
    read_options as read_options,
    read_weight as read_weight,
    refuse_batches as refuse_batches,
    weights as weights,
)
from nrm.measure.show import options_text as options_text, output_text as output_text, sign_text as sign_text
from nrm.measure.sketch import Estimate
from nrm.measure.table import Axis as Axis, make_results as make_results, question_axes as question_axes
from nrm.measure.verdict import balance as balance, is_beyond as is_beyond
from nrm.measure.written import Generated as Generated, WrittenToken as WrittenToken

__all__ = [
    "Check",
    "Circuit",
    "Cut",
    "Difference",
    "Estimate",
    "Generated",
    "InputPart",
    "InputParts",
    "LayerRow",
    "LayerTable",
    "Measure",
    "Writing",
    "WrittenToken",
    "estimate",
    "generated",
    "measure",
    "reference",
]

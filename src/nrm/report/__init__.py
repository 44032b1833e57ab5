"""Reports: everything about one prediction on one page, a single file that needs no network and no server.

``R.report("report.html")`` writes it, ``R.report()`` shows it in a notebook. Circuits have pages of their own:
``C.report("circuit.html", R)``.
"""

from nrm.report.attention import attention_layers as attention_layers, attention_maps as attention_maps
from nrm.report.circuits import CircuitReport, CircuitView, circuit_report as circuit_report
from nrm.report.columns import BY as BY, Pick as Pick, read_partitions as read_partitions
from nrm.report.decision import REMOVED as REMOVED, switch_off as switch_off
from nrm.report.examples import References as References
from nrm.report.health import health as health
from nrm.report.named import (
    input_digest as input_digest,
    named_sets,
    read_key as read_key,
    write_key as write_key,
)
from nrm.report.names import (
    input_notes as input_notes,
    keep_notes as keep_notes,
    name_node,
    names_file as names_file,
    node_names,
)
from nrm.report.page import (
    ASSETS as ASSETS,
    COLOURS as COLOURS,
    Report,
    linked_page as linked_page,
    read_asset as read_asset,
)
from nrm.report.regions import read_blocks as read_blocks, read_numbers as read_numbers
from nrm.report.thumbs import Thumb as Thumb, channel_layers as channel_layers, read_thumb as read_thumb
from nrm.report.view import EFFORT as EFFORT, NODES as NODES, View

__all__ = ["CircuitReport", "CircuitView", "Report", "View", "name_node", "named_sets", "node_names"]

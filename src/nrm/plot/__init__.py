"""Pictures of relevance. Drawing needs the extra ``viz`` (matplotlib), imported when it is called.

Relevance is a signed share, so zero has to look like nothing and both signs have to be equally loud: white in the
middle, red *for* the explained output, blue *against* it, the same lightness at the same distance from zero.

* :func:`heatmap`: one heat map, alone or over its image, on an ``ax`` of yours or a new one.
* :func:`montage`: a grid, one row per image, the image and its heat maps side by side.
* :func:`flows`: layers as columns, relevance as ribbons between their strongest blocks.
* :func:`gallery`: the samples of a data set in which blocks count most, one row per block.
* :func:`series`: a sequence as lines on the colours of its relevance, and bars of their sums.
* :func:`scatter`, :func:`sc_curves`: scores beside joint contributions, and the sums over the highest scores.
* :func:`strips`: an image, and where its strongest combinations of blocks look.
* :func:`text`: the tokens of a text in the colours of their relevance; shown by notebooks without any extra.
* :func:`graph`: a graph with the relevance of its nodes and edges.
* :func:`parts`: all that a model reads, images, sounds and texts, on one colour scale, each with its share.
* :func:`generated`: generated tokens by the tokens that they come from.
* :func:`table`: a table of shares with names at its sides, such as generated tokens by their sources.
* :func:`circuit`: a circuit, layers from the bottom up, its edges as curves as wide as what flows in them.
* :func:`waterfall`: amounts that add up, from the output of a reference to the output here.
* :func:`diverging`: the colour map of all.

What is drawn on a new figure has ``.save(path)``: ``nrm.plot.heatmap(...).save("map.png")``. On an ``ax`` of yours, the
figure is yours, too: ``ax.figure.savefig(...)``.
"""

from nrm.plot.agreement import sc_curves, scatter
from nrm.plot.circuit import circuit, sentence as sentence
from nrm.plot.circuit_nodes import PORT as PORT, CircuitPicture as CircuitPicture, lay_out_circuit as lay_out_circuit
from nrm.plot.colors import ABOVE as ABOVE, BELOW as BELOW, diverging
from nrm.plot.columns import (
    FlowColumn as FlowColumn,
    FlowPicture as FlowPicture,
    NodeChoice as NodeChoice,
    choose_nodes as choose_nodes,
    count_blocks as count_blocks,
    join_columns as join_columns,
    name_blocks as name_blocks,
    read_choice as read_choice,
    untangle as untangle,
    with_elsewhere as with_elsewhere,
)
from nrm.plot.flow import draw_flows as draw_flows, flows
from nrm.plot.gallery import gallery
from nrm.plot.grid import montage
from nrm.plot.heat import heatmap
from nrm.plot.layout import lay_out as lay_out, lay_out_molecule as lay_out_molecule
from nrm.plot.nodes import graph, join_lines as join_lines
from nrm.plot.parts import parts
from nrm.plot.pictures import Array as Array, read_image as read_image
from nrm.plot.saving import draw_and_save as draw_and_save, save_and_close as save_and_close
from nrm.plot.series import series
from nrm.plot.strip import strips
from nrm.plot.table import generated, table
from nrm.plot.waterfall import waterfall
from nrm.plot.words import Text, read_pieces as read_pieces, text

__all__ = [
    "Text",
    "circuit",
    "diverging",
    "flows",
    "gallery",
    "generated",
    "graph",
    "heatmap",
    "montage",
    "parts",
    "sc_curves",
    "scatter",
    "series",
    "strips",
    "table",
    "text",
    "waterfall",
]

"""Questions to the measures of many samples: statistics over a stream, and the samples that count most."""

from nrm.jobs.circuits import CircuitJob as CircuitJob, TaskCircuit, circuit
from nrm.jobs.crops import Crops, keep_crops, kept_crops as kept_crops
from nrm.jobs.datasets import Images, open_dataset as open_dataset, refuse_folder as refuse_folder
from nrm.jobs.heatmap import Heatmap
from nrm.jobs.heatmaps import Heatmaps, heatmaps
from nrm.jobs.hits import Hit, Hits, LeadingBlocks
from nrm.jobs.likeness import identify as identify
from nrm.jobs.ranking import Ranking
from nrm.jobs.relmax import relmax
from nrm.jobs.samples import on_device as on_device, split_label as split_label
from nrm.jobs.store import Store, merge_stores, open_store
from nrm.jobs.stream import Stream, stream

__all__ = [
    "Crops",
    "Heatmap",
    "Heatmaps",
    "Hit",
    "Hits",
    "Images",
    "LeadingBlocks",
    "Ranking",
    "Store",
    "Stream",
    "TaskCircuit",
    "circuit",
    "heatmaps",
    "keep_crops",
    "merge_stores",
    "open_store",
    "relmax",
    "stream",
]

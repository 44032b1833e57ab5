"""Files: written as a whole or not at all, folders that belong to one job, and how data is read, with its limits."""

from nrm.files.claims import begin, claim, differing, read_manifest
from nrm.files.folders import files_below, mark_results
from nrm.files.images import MOST_BYTES, MOST_PIXELS, SUFFIXES, read_image
from nrm.files.writing import HALF, replacing, replacing_folder, write_text

__all__ = [
    "HALF",
    "MOST_BYTES",
    "MOST_PIXELS",
    "SUFFIXES",
    "begin",
    "claim",
    "differing",
    "files_below",
    "mark_results",
    "read_image",
    "read_manifest",
    "replacing",
    "replacing_folder",
    "write_text",
]

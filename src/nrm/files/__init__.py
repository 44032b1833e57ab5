"""Files: written as a whole or not at all, folders that belong to one job, and how data is read, with its limits."""

from nrm.files.claims import begin, claim, differing, read_manifest
from nrm.files.folders import files_below, mark_results
from nrm.files.images import MOST_BYTES, MOST_PIXELS, SUFFIXES, read_image
from nrm.files.tensors import TENSORS, holds_tensors, read_tensors
from nrm.files.texts import TEXTS, is_tokenizer, read_text, token_names, tokenize
from nrm.files.writing import HALF, replacing, replacing_folder, write_text

__all__ = [
    "HALF",
    "MOST_BYTES",
    "MOST_PIXELS",
    "SUFFIXES",
    "TENSORS",
    "TEXTS",
    "begin",
    "claim",
    "differing",
    "files_below",
    "holds_tensors",
    "is_tokenizer",
    "mark_results",
    "read_image",
    "read_manifest",
    "read_tensors",
    "read_text",
    "replacing",
    "replacing_folder",
    "token_names",
    "tokenize",
    "write_text",
]

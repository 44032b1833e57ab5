"""Draws docs/images/circuit.png: the circuit by which a language model names the other of two people.

``docs/screenshots.py`` makes docs/images/circuit-page.png of the page of the same circuit.

SmolLM2-135M is what ``make smollm2`` fetches: in ``$NRM_DATA``, ``out/data`` or beside the repository.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import matplotlib

import nrm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from real.smollm2 import FOLDER, load_smollm2  # noqa: E402

SENTENCE = "When John and Mary went to the store, {} gave a drink to"


def find_home() -> Path:
    """The folder that has SmolLM2."""
    given = os.environ.get("NRM_DATA")
    homes = [Path(given)] if given else [ROOT / "out" / "data", ROOT.parent / "shared" / "data"]
    return next((home for home in homes if (home / FOLDER).is_dir()), homes[0])


def measure_names(home: Path) -> tuple[nrm.Measure, list[str]]:
    """The contrast of a pair of prompts, which differ in who gives the drink, and the tokens of the first one."""
    model, _, _ = load_smollm2(home)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(home)
    ids, other = (tokenizer(SENTENCE.format(name), return_tensors="pt")["input_ids"] for name in ("John", "Mary"))
    mary, john = (tokenizer(f" {name}", add_special_tokens=False)["input_ids"][0] for name in ("Mary", "John"))
    R = nrm.measure(model, ids, against=other, output=lambda o: o.logits[:, -1, mary] - o.logits[:, -1, john])
    return R, [tokenizer.decode(i) for i in ids[0]]


def main() -> None:
    """Find the circuit of one pair of prompts, at single tokens, and draw it."""
    matplotlib.use("Agg")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=find_home(), help="the folder of the real data")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "circuit.png")
    parser.add_argument("--mass", type=float, default=0.9, help="how much of the difference it is to carry")
    options = parser.parse_args()
    R, tokens = measure_names(options.data / FOLDER)
    found = R.circuit(mass=options.mass, positions=True, chains=3)
    print(R, found, sep="\n")
    nrm.plot.circuit(found, labels=tokens).save(options.out, dpi=100)
    print(options.out)


if __name__ == "__main__":
    main()

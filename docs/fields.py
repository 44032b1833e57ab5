"""Draws docs/images/field-*.png: an answer of every network that ``make fields`` fetches, as its field sees it.

Sounds are spoken by espeak-ng.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import torch

import nrm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import vision  # noqa: E402
from real import fields  # noqa: E402
from real.whisper import speak  # noqa: E402


def silero(home: Path) -> Any:
    model, spoken = fields.silero(home), speak("Hello world.").float()[: 8 * 512]
    wave = torch.cat([torch.zeros(2112), spoken])[None]
    noise = 1e-4 * torch.randn(wave.shape, generator=torch.Generator().manual_seed(0))
    D = nrm.measure(model, wave + noise, against=noise)
    pieces = D(D.input)[0].reshape(-1, 64).sum(1)
    return nrm.plot.series(
        pieces, wave[0].reshape(-1, 64).abs().amax(1), channels=["loudness"], figsize=(7, 2.6),
        times=torch.arange(len(pieces)) * 64 / fields.RATE, title="speech: what was heard, rather than silence",
    )  # fmt: skip


def crepe(home: Path) -> Any:
    model, wave = fields.crepe(home), fields.tone(220.0)
    D = nrm.measure(model, wave, against=torch.zeros_like(wave))
    pitch = fields.pitch_of(int(D.target))
    times = torch.arange(1024) / fields.RATE
    return nrm.plot.series(
        D(D.input)[0], wave[0], channels=["wave"], times=times, figsize=(7, 2.6),
        title=f"a tone of 220 Hz, heard as {pitch:.0f} Hz",
    )  # fmt: skip


def resemblyzer(home: Path) -> Any:
    encoder, mels = fields.voices(home), fields.mel_frames(speak("The dog chased the cat.").float())[:, :90]
    with torch.no_grad():
        others = encoder(mels)
    R = nrm.measure(fields.Alike(encoder, others), mels)
    heat, shown = R(R.input)[0].T.flip(0), mels[0].T.flip(0).clamp(min=1e-6).log()
    return nrm.plot.heatmap(heat, shown, figsize=(7, 3.4), title="a voice as a spectrum: what it is recognized by")


def nanoguard(home: Path) -> Any:
    model, tokenizer = fields.guard(home)
    ids = torch.tensor([tokenizer.encode(fields.TAKEOVER)])
    R = nrm.measure(model, (ids, torch.ones_like(ids, dtype=torch.bool)), target=1)
    words = ["<begin>", *(tokenizer.enc.decode([i]) for i in ids[0, 1:].tolist())]
    return nrm.plot.text(R(R.tokens)[0], words, title="an attack, 99.9 % sure").draw(columns=60)


def magika(home: Path) -> Any:
    model, kinds = fields.magika(home)
    ids = fields.bytes_of(fields.SCRIPT)
    D = nrm.measure(model, ids, against=torch.where(ids < 256, torch.full_like(ids, ord("a")), ids))
    text = fields.SCRIPT.strip().decode()
    share = D(D.tokens)[0][: len(text)]
    title = f"{kinds[int(D.target)]}, rather than a file of as many times the letter a"
    return nrm.plot.text(share, [f"{letter}" for letter in text], title=title).draw(columns=60)


def antiberty(home: Path) -> Any:
    model, tokenizer = fields.antibody(home)
    tokens = dict(tokenizer(" ".join(fields.HEAVY), return_tensors="pt"))
    masked = {**tokens, "input_ids": tokens["input_ids"].masked_fill(tokens["input_ids"] > 4, tokenizer.mask_token_id)}
    D = nrm.measure(model, tokens, output="species_logits", against=masked)
    chain = ["##" * (i > 0) + letter for i, letter in enumerate(fields.HEAVY)]
    return nrm.plot.text(D(D.tokens)[0][1:-1], chain, title="a human heavy chain, rather than masks").draw(columns=60)


def proteinmpnn(home: Path) -> Any:
    backbone, at = fields.helix(24), 8
    model = fields.designer(home, 24)
    with torch.no_grad():
        best = model(backbone)[0].argmax(-1)
    D = nrm.measure(model, backbone, against=fields.stretched(backbone), target=(at, int(best[at])))
    names = [f"{model.letters[int(k)]} {i}" for i, k in enumerate(best)]
    title = f"why {names[at]}? The places of residues, rather than those of a stretched helix"
    amounts = float(D.value) * D(D.input)[0].sum((1, 2))
    return nrm.plot.waterfall(amounts, names, start=D.there, most=9, title=title)


def admet(home: Path) -> Any:
    model, inputs, questions, molecule = fields.drug(home, fields.NITRO)
    R = nrm.measure(model, inputs, target=(0, questions.index("AMES")), batch_dim=None)
    atoms, bonds = R(R["input[0]"])[0].sum(1), R(R["input[1]"])[0].sum(1)
    symbols = [atom.GetSymbol() for atom in molecule.GetAtoms()]
    rest = 1 - float(atoms.sum() + bonds.sum())
    return nrm.plot.graph(model.graph.edge_index, atoms, bonds, labels=symbols, rest=rest, title="a mutagen, 93 % sure")


def chgnet(home: Path) -> Any:
    model, numbers = fields.crystal(home, fields.SALT, fields.CELL, 5.64)
    D = nrm.measure(model, numbers, against=torch.where(numbers == 11, 19, numbers))
    names = [f"{element} {i + 1}" for i, element in enumerate(fields.SALT)]
    ends = "K in their place", "Na"
    return nrm.plot.waterfall(
        D.in_units(D.tokens), names, start=D.there, ends=ends, title="rock salt: energy in eV an atom", figsize=(7, 3.2)
    )  # fmt: skip


def tumor(home: Path) -> Any:
    model, classes = fields.tumors(home)
    image, _ = fields.scan(home)
    R = nrm.measure(model, image)
    return nrm.plot.heatmap(
        R(R.input)[0], image, title=f"{classes[int(R.target)]}? A healthy head, with a spot drawn in"
    )


DRAWN: dict[str, Callable[[Path], Any]] = {
    "field-silero": silero, "field-crepe": crepe, "field-resemblyzer": resemblyzer, "field-nanoguard": nanoguard,
    "field-magika": magika, "field-antiberty": antiberty, "field-proteinmpnn": proteinmpnn, "field-admet": admet,
    "field-chgnet": chgnet, "field-tumor": tumor,
}  # fmt: skip


def main() -> None:
    """Draw what is asked for, by default all of it."""
    matplotlib.use("Agg")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join(DRAWN))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    vision.load()
    homes = (Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data"), ROOT / "out" / "data")
    home = next(home for home in homes if (home / "fields").exists()) / "fields"
    for name in options.names or DRAWN:
        torch.manual_seed(0)
        DRAWN[name](home).save(options.out / f"{name}.png", dpi=110)
        plt.close("all")
        print(options.out / f"{name}.png")


if __name__ == "__main__":
    main()

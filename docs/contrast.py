"""Draws the pictures of contrasts, docs/images/contrast*.png: one network and one input, against several references.

Run by ``make contrast``. Digits and the table need nothing; photos (VGG16), the sentence (SmolLM2) and the molecules
(MUTAG) are the real data of the tests, beside the repository or in ``$NRM_DATA``, and are left out where they are not.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor

import nrm
from nrm.demo import digits, read_digits

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

PHOTOS = {"n02102040": 9, "n03000684": 8, "n03028079": 2}
"""The folder of a class, and which of its photos in alphabetical order (none shows a person's face)."""
SENTENCE = "When Mary and John went to the store, {} gave a drink to"


def draw_digits(_: Path) -> Any:
    """A 6, and what argues for it: by itself, and against four references."""
    model, _, _ = digits()
    images, classes = read_digits()
    x, others, known = images[1503:1504], images[:1500], classes[:1500]
    zeros = others[known == 0]
    twin = zeros[(zeros - x).flatten(1).norm(dim=1).argmin()][None]
    references = {
        "by itself": None, "rather than nothing\nagainst='zeros'": torch.zeros_like(x),
        "rather than a blur\nagainst='blur'": nrm.reference("blur", x),
        "rather than the mean digit\nreference('mean', data)": nrm.reference("mean", others),
        "rather than this 0\nagainst=other": twin,
    }  # fmt: skip
    figure, axes = plt.subplots(2, len(references), figsize=(11.2, 5.0), layout="constrained")
    for (title, other), (above, below) in zip(references.items(), axes.T, strict=True):
        R = nrm.measure(model, x, target=6, against=other)
        print(title.replace("\n", ", "), R.here.tolist(), R.there.tolist(), float(R(R.input).abs().sum()))
        above.imshow((x if other is None else other)[0, 0].numpy(), cmap="gray_r", vmin=0, vmax=1)
        above.set(xticks=[], yticks=[])
        above.set_title(title, fontsize=9)
        nrm.plot.heatmap(R(R.input)[0], ax=below, image=1 - x[0], smooth=False, colorbar=False, alpha=0.85)
        there = f"{float(R.there):.1f}" if R.there >= 0 else f"(−{-float(R.there):.1f})"
        below.set_title(f"{float(R.here):.1f}" + ("" if other is None else f" − {there}"), fontsize=9)
    axes[0, 0].set_ylabel("the digit, and references", fontsize=9)
    axes[1, 0].set_ylabel("red: argues for 6", fontsize=9)
    return figure


def draw_table(_: Path) -> Any:
    """The first waterfall of the page on tables, by its own blocks."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "tabular.md").read_text(), re.M | re.S)
    names: dict[str, Any] = {}
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the page saves its picture
        try:
            for block in blocks:
                exec(block, names)
                if "ax" in names:
                    return names["ax"].figure
        finally:
            os.chdir(here)
    raise SystemExit("docs/tabular.md draws nothing")


def draw_photos(data: Path) -> Any:
    """Photos beside their blurs: the plain measure, and the contrast, pixel by pixel and in squares."""
    from real import models

    network = models.load("VGG16-Imagenette", data)
    rows, names = [], []
    for folder, name in zip(sorted((data / "imagenette" / "val").iterdir()), models.IMAGENETTE, strict=True):
        if folder.name not in PHOTOS:
            continue
        x = models.photo(sorted(folder.iterdir())[PHOTOS[folder.name]])[None]
        plain = nrm.measure(network, x, rules="epsilon-plus-flat")
        exact, flat = (
            nrm.measure(network, x, against="blur", target=plain.target, rules=rules)
            for rules in ("exact", {"features.0": nrm.Flat(), "*": "exact"})
        )
        print(f"{name}: {exact.here.tolist()} - {exact.there.tolist()}")
        heats = [R(R.input.positions)[0] for R in (plain, exact, flat)]
        squares = torch.nn.functional.avg_pool2d(heats[1][None, None], 14, divisor_override=1)[0, 0]
        rows.append([models.shown(x[0]), heats[0], squares, heats[2]])
        names.append(f"{name}\n{float(exact.here):.1f} − {float(exact.there):.1f}")
    columns = [
        "photo",
        "by itself\nepsilon-plus-flat",
        "against its blur\nexact, 14 x 14 pixels",
        "against its blur\nFlat below, exact above",
    ]
    return nrm.plot.montage(rows, names=names, columns=columns, size=2.1, alpha=0.85)


def draw_heads(data: Path) -> Any:
    """The heads that turn another name into another answer: from token to token."""
    from real.smollm2 import FOLDER, load_smollm2

    model, _, _ = load_smollm2(data / FOLDER)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(data / FOLDER)
    ids, other = (tokenizer(SENTENCE.format(name), return_tensors="pt")["input_ids"] for name in ("John", "Mary"))
    mary, john = (tokenizer(f" {name}", add_special_tokens=False)["input_ids"][0] for name in ("Mary", "John"))
    R = nrm.measure(model, ids, against=other, output=lambda o: o.logits[:, -1, mary] - o.logits[:, -1, john])
    print(R, R.check().verdict, sep="\n")
    attention = [R[f"model.layers.{i}.self_attn"] for i in range(model.config.num_hidden_layers)]
    flow = R(nrm.stack(*(a.edges for a in attention)))[0]  # layers, heads, queries, keys
    words = [tokenizer.decode(i).strip() for i in ids[0]]
    first = int((ids != other)[0].nonzero()[0, 0])  # nothing differs before it
    strongest = flow.sum((2, 3)).abs().flatten().topk(6).indices.sort().values.tolist()
    figure, axes = plt.subplots(2, 3, figsize=(11.6, 4.6), layout="constrained")
    for k, ax in zip(strongest, axes.flat, strict=True):
        layer, head = divmod(k, flow.shape[1])
        table = flow[layer, head, first:]
        nrm.plot.table(table, rows=words[first:], columns=words, ax=ax, scale=0.3, colorbar=False)
        ax.set_title(f"layer {layer}, head {head}: {float(flow[layer, head].sum()):+.0%}", fontsize=10, loc="left")
    return figure


def draw_molecule(data: Path) -> Any:
    """A molecule with one atom exchanged: how the difference spreads, layer by layer."""
    from real.molecules import ATOMS, deal, read_mutag, train

    graphs = read_mutag(data / "graphs" / "MUTAG")
    part = deal(graphs).tolist()
    model = train([g for g, p in zip(graphs, part, strict=True) if p != 0], seed=0).double()
    graph = next(g for g, p in zip(graphs, part, strict=True) if p == 0 and int(g.y) == 1 and bool(g.truth.any()))
    names, x = [ATOMS[i] for i in graph.x.argmax(1).tolist()], graph.x.double()
    others = [exchanged(x, i, ATOMS.index(kind)) for i, name in enumerate(names) for kind in "CN" if kind != name]
    with torch.no_grad():
        logits = [model(one, graph.edge_index)[0] for one in others]
    other = others[int(torch.stack([one[1] - one[0] for one in logits]).argmin())]  # the exchange that costs most
    atom, kind = divmod(int((other - x).argmax()), x.shape[1])
    labels = [f"{name}/{ATOMS[kind]}" if i == atom else name for i, name in enumerate(names)]
    R = nrm.measure(model, (x, graph.edge_index), against=(other, graph.edge_index), output=lambda o: o[:, 1] - o[:, 0])
    print(R, R.check().verdict, sep="\n")
    figure, axes = plt.subplots(1, 3, figsize=(12.6, 3.8), layout="constrained")
    for i, ax in enumerate(axes):
        conv, title = R[f"convs.{i}"], f"layer {i + 1}"
        nrm.plot.graph(graph, nodes=R(conv.positions), edges=R(conv.edges), labels=labels, ax=ax, title=title)
    logits = f"logits {float(R.here):.1f} apart, against {float(R.there):.1f}"
    figure.suptitle(f"{names[atom]} rather than {ATOMS[kind]}: {logits}".replace("-", "\N{MINUS SIGN}"))
    return figure


def exchanged(x: Tensor, atom: int, kind: int) -> Tensor:
    """The molecule with an atom of another kind."""
    other = x.clone()
    other[atom] = 0
    other[atom, kind] = 1
    return other


PICTURES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "contrast.png": (draw_digits, ""),
    "contrast-table.png": (draw_table, ""),
    "contrast-blur.png": (draw_photos, "vgg16-imagenette"),
    "contrast-heads.png": (draw_heads, "smollm2-135m"),
    "contrast-molecule.png": (draw_molecule, "graphs/MUTAG"),
}
"""Every picture, who draws it, and the data it needs."""


def main() -> None:
    """Draw all pictures, or those that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    home = Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data")
    parser.add_argument("pictures", nargs="*", default=list(PICTURES), help="which pictures")
    parser.add_argument("--data", type=Path, default=home, help="the folder of the real data")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    for name in options.pictures:
        draw, needs = PICTURES[name]
        if not (options.data / needs).exists() and needs:
            print(f"{name} is left out: {needs} is not in {options.data}")
            continue
        path = options.out / name
        draw(options.data).savefig(path, dpi=100, pil_kwargs={"optimize": True})
        print(f"wrote {path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()

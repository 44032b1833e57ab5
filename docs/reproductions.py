"""Makes docs/images/reproduce-*.png, small, of the figures that ``nrm reproduce`` has written into out/."""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image

IMAGES = Path(__file__).parent / "images"
LARGEST = 250_000
"""Bytes of a picture."""
FIGURES = {
    "reproduce-mlp-sc": ("mlp/sc_k", 1000, 0.0),
    "reproduce-mlp-scatter": ("mlp/scatter", 1100, 0.0),
    "reproduce-channels-sc": ("vgg-channels/sc_k", 640, 0.0),
    "reproduce-pairs": ("vgg-channels/pairs", 1000, 0.336),  # without the first row, a photo of a person
    "reproduce-strips": ("vgg-clusters/strips-1", 1200, 0.0),
    "reproduce-additive": ("additive/sets", 760, 0.0),
    "reproduce-rnn": ("rnn/steps", 900, 0.0),
    "reproduce-graphs": ("gnn/graphs", 1100, 0.0),
}
"""For every picture the figure it is made of, its width, and the part that is cut off above."""


def shrink(figure: Path, width: int, above: float) -> Image.Image:
    """The figure in this width, without its upper part."""
    whole = Image.open(figure).convert("RGB")
    small = whole.resize((width, round(whole.height * width / whole.width)), Image.Resampling.LANCZOS)
    return small.crop((0, round(above * small.height), small.width, small.height))


def main() -> None:
    """Makes the pictures of the experiments that are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"), help="where nrm reproduce has written")
    home = parser.parse_args().out
    for name, (figure, width, above) in FIGURES.items():
        source, target = home / f"{figure}.png", IMAGES / f"{name}.png"
        if not source.exists():
            print(f"{target.name} stays: no {source}")
            continue
        small = shrink(source, width, above)
        for colors in (256, 128, 64, 32):
            small.quantize(colors).save(target, optimize=True)
            if target.stat().st_size <= LARGEST:
                break
        print(f"{target.name}: {target.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()

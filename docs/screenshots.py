"""The screenshots of the docs: a report, and the explorer in light and dark, in a headless browser.

Run by ``make screenshots``. Needs Chromium (``$NRM_BROWSER``, or ``chromium`` on the path) and trains the network of
``examples/digits.py`` for a few seconds.
"""

from __future__ import annotations

import argparse
import importlib
import io
import pathlib
import sys
import tempfile

import torch
from PIL import Image
from sklearn.datasets import load_digits

import nrm

ROOT = pathlib.Path(__file__).resolve().parents[1]
CLASSES = [f"digit {i}" for i in range(10)]
RULES = {"rules": "epsilon-plus", "bias": "input"}


def save(page: object, path: pathlib.Path, **options: bool) -> None:
    """A screenshot with few colours, which makes it small."""
    picture = Image.open(io.BytesIO(page.screenshot(**options)))  # type: ignore[attr-defined]
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path} ({path.stat().st_size >> 10} KiB)")


def main() -> None:
    """Train, serve, look."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "images")
    out = parser.parse_args().out
    sys.path += [str(ROOT / "examples"), str(ROOT / "tests")]
    browsers = importlib.import_module("explorer.browser")
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    torch.manual_seed(0)
    model = importlib.import_module("digits").trained(images[:1500], torch.tensor(digits.target)[:1500], 8)
    with tempfile.TemporaryDirectory() as folder, browsers.launched() as browser:
        report = pathlib.Path(folder) / "report.html"
        R = nrm.measure(model, images[1512:1513], labels={"output": CLASSES}, **RULES)
        R.report(report, title="a small network on digits")
        with browsers.opened(browser, report.as_uri()) as page:
            save(page, out / "report.png", full_page=True)
        served = nrm.explore(model, images[1500:1540], labels=CLASSES, open=False, block=False, **RULES)
        with served, browsers.opened(browser, served.url) as page:
            page.wait_for_selector(".flow")
            page.locator("#against").select_option("9")
            page.wait_for_selector("#comparison figure")
            page.wait_for_function("() => document.getElementById('job').hidden")
            page.locator(".flow").first.click()
            page.wait_for_selector(".given")
            save(page, out / "explorer.png")
            page.keyboard.press("d")
            save(page, out / "explorer-dark.png", full_page=True)


if __name__ == "__main__":
    main()

"""The screenshots of the docs: reports and the explorer in light and dark, in a headless browser.

Run by ``make screenshots``. Needs Chromium (``$NRM_BROWSER``, or ``chromium`` on the path); the network on digits
is the one that the package carries. Where the real data is (beside the repository, or in ``$NRM_DATA``), VGG16
looks at a photo that comes with scikit-learn, a language model tells a story, and a graph network reads molecules.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
from PIL import Image
from sklearn.datasets import load_sample_image

import nrm
from nrm import demo

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))
HOME = pathlib.Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data")
CLASSES = [f"digit {i}" for i in range(10)]
MINUTES = 15 * 60_000
browsers = importlib.import_module("explorer.browser")

Save = Callable[..., None]


def saver(folder: pathlib.Path) -> Save:
    """Writes a page as a picture with few colours, which makes it small."""

    def save(page: Any, name: str, colours: int = 256, **options: Any) -> None:
        path = folder / f"{name}.png"
        page.evaluate("scrollTo(0, 0)")
        picture = Image.open(io.BytesIO(page.screenshot(**options)))
        picture.convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
        print(f"{path} ({path.stat().st_size >> 10} KiB)")

    return save


def complete(page: Any) -> None:
    """Waits for all parts of a view; what takes long is agreed to."""
    page.wait_for_selector(".flow, #agree", timeout=MINUTES)
    if page.locator("#agree").count():
        page.locator("#agree").click()
    page.wait_for_selector(".flow", timeout=MINUTES)
    page.wait_for_function("() => document.getElementById('job').hidden", timeout=MINUTES)


def chosen(page: Any, *nodes: str) -> None:
    """Clicks nodes, and waits for their map."""
    for node in nodes:
        page.locator(f'[data-node="{node}"]').click()
    page.wait_for_function("() => !document.querySelector('#selection .note')", timeout=MINUTES)


def digits(browser: Any, save: Save) -> None:
    """A small network on digits: a report, two classes compared, the best samples of a channel."""
    model, _, _ = demo.digits()
    images, labels = demo.read_digits()
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.html"
        R = nrm.measure(model, images[1512:1513], labels={"output": CLASSES})
        R.report(report, title="a small network on digits")
        with browsers.opened(browser, report.as_uri()) as page:
            save(page, "report", full_page=True)
    served = nrm.explore(model, images[1512:1540], labels=CLASSES, open=False, block=False)
    with served, browsers.opened(browser, served.url) as page:
        complete(page)
        page.locator("#compare").select_option("9")
        page.wait_for_selector("#comparison figure")
        complete(page)
        page.locator(".flow").first.click()
        page.wait_for_selector(".given")
        save(page, "explorer")
        page.keyboard.press("d")
        save(page, "explorer-dark", full_page=True)
    layer = next(name for row in reversed(R.layers) if len(row.shape) == 3 for name in [row.name])
    samples = torch.utils.data.TensorDataset(images[:400], labels[:400])
    found = nrm.relmax(model, samples, nrm.layer(layer).channels, k=9, progress=False)
    served = nrm.explore(
        model, images[1512:1540], labels=CLASSES, store=found, dataset=samples, open=False, block=False
    )
    address = f'{served.url}#layers=[["{layer}","channels"],["output","channels"]]'
    with served, browsers.opened(browser, address) as page:
        complete(page)
        chosen(page, "0:0")
        page.wait_for_selector("#examples figure")
        save(page, "explorer-examples", full_page=True)


def many(browser: Any, save: Save) -> None:
    """Many digits, laid out by how their decisions flow; two clusters compared."""
    model, _, _ = demo.digits()
    images, labels = demo.read_digits()
    data = [(image, int(label)) for image, label in zip(images[1500:1600], labels[1500:1600], strict=True)]
    served = nrm.explore(model, data, labels=CLASSES, open=False, block=False)
    with served, browsers.opened(browser, served.url) as page:
        complete(page)
        page.locator("#overview-count").evaluate("count => { count.value = 100; }")
        page.locator("#all").click()
        page.locator('[data-shown="plane"]').click()
        page.wait_for_function("() => document.querySelectorAll('.dot').length === 100", timeout=MINUTES)
        page.locator("#overview-one").select_option("cluster 1")
        page.locator("#overview-other").select_option("cluster 2")
        page.locator("#overview-sides").click()
        page.wait_for_selector("#alike")
        area = page.locator("#overview").bounding_box()
        save(page, "explorer-many", full_page=True, clip={**area, "y": area["y"] + page.evaluate("scrollY")})


def photo(browser: Any, save: Save) -> None:
    """VGG16 on a photo: a part of the picture is outlined, named and asked about."""
    models = importlib.import_module("real.models")
    model = models.load("VGG16-Imagenette", HOME)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "china.png"
        Image.fromarray(load_sample_image("china.jpg")).save(path)
        image = models.photo(path)
    served = nrm.explore(model, image[None], labels=models.IMAGENETTE, open=False, block=False)
    with served, browsers.opened(browser, served.url) as page:
        complete(page)
        chosen(page, "2:0", "3:0")
        save(page, "explorer-vgg16", colours=200)
        page.keyboard.press("Escape")
        page.locator('[data-tool="lasso"]').click()
        area = page.locator("#picture").bounding_box()
        outline = [(0.14, 0.02), (0.24, 0.02), (0.42, 0.3), (0.54, 0.62), (0.5, 0.72), (0.02, 0.75), (0.01, 0.3)]
        places = [(area["x"] + x * area["width"], area["y"] + y * area["height"]) for x, y in outline]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=4)
        page.mouse.up()
        page.locator("#name").fill("tower")
        page.locator("#name-region").click()
        page.locator('[data-node="3:0"]').click()
        page.locator("#name").fill("late")
        page.locator("#name-nodes").click()
        page.locator("#ask").fill("tower AND NOT late")
        page.wait_for_function("() => document.getElementById('price').textContent", timeout=MINUTES)
        page.locator("#run").click()
        page.wait_for_function("() => document.getElementById('share')?.textContent.includes('%') && "
                               "!document.querySelector('#selection .note')", timeout=MINUTES)  # fmt: skip
        page.locator("#theme").click()
        save(page, "explorer-formula", colours=200)


def story(browser: Any, save: Save) -> None:
    """A language model: tokens, and heads of two layers."""
    importlib.import_module("vision").load()  # which transformers imports
    stories = importlib.import_module("real.stories")
    tokenizer = stories.Tokenizer(HOME / "stories15M" / "tokenizer.bin")
    served = nrm.explore(
        stories.load_stories(HOME / "stories15M"), stories.PROMPTS[:6], labels=tokenizer.pieces,
        transform=lambda text: {"input_ids": tokenizer.batch(text)}, open=False, block=False,
        names=lambda inputs: [tokenizer.pieces[i] for i in inputs["input_ids"][0].tolist()],
    )  # fmt: skip
    heads = "".join(f'["model.layers.{i}.self_attn/reshape","heads"],' for i in (2, 4))
    address = f'{served.url}#layers=[["input","positions"],{heads}["output","channels"]]'
    with served, browsers.opened(browser, address) as page:
        complete(page)
        chosen(page, "1:0")
        save(page, "explorer-story")


def written(browser: Any, save: Save) -> None:
    """What a language model writes, and where a word of it comes from."""
    importlib.import_module("vision").load()  # which transformers imports
    transformers = importlib.import_module("transformers")
    circuits = importlib.import_module("circuits")
    home = circuits.find_home() / circuits.FOLDER
    if not home.is_dir():
        print(f"explorer-written.png is left out: no {home} (make smollm2)")
        return
    model = transformers.AutoModelForCausalLM.from_pretrained(home, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(home)
    text = "Anna has a red car, and Ben has a blue boat. On Sunday Ben painted his boat green, so that now"
    served = nrm.explore(model, [text], transform=tokenizer, open=False, block=False)
    with served, browsers.opened(browser, served.url) as page:
        page.fill("#written-tokens", "12")
        page.click("#written-go")
        page.wait_for_function(
            "() => document.querySelector('#written-script').textContent.includes('12')", timeout=MINUTES
        )
        page.check("#written-apart")
        page.locator("#written summary").first.click()
        page.locator("#written-text .tok.new").nth(7).click()
        box = page.evaluate(
            "() => { scrollTo(0, 0); const r = document.querySelector('#written').getBoundingClientRect();"
            " return { x: r.x, y: r.y, width: r.width, height: r.height }; }"
        )
        save(page, "explorer-written", full_page=True, clip=box)


def molecule(browser: Any, save: Save) -> None:
    """A graph network on a molecule that it has not learned from."""
    molecules = importlib.import_module("real.molecules")
    graphs = molecules.read_mutag(HOME / "graphs" / "MUTAG")
    parts = molecules.deal(graphs).tolist()
    model = molecules.train([g for g, part in zip(graphs, parts, strict=True) if part], seed=0)
    held = [(g.x, g.edge_index) for g, part in zip(graphs, parts, strict=True) if not part]
    served = nrm.explore(
        model, held[:8], labels=["harmless", "mutagenic"],
        names=lambda inputs: [molecules.ATOMS[i] for i in inputs[0].argmax(1).tolist()], open=False, block=False,
    )  # fmt: skip
    with served, browsers.opened(browser, served.url) as page:
        complete(page)
        chosen(page, "2:0")
        page.keyboard.press("d")
        save(page, "explorer-molecule")


def circuit(browser: Any, save: Save) -> None:
    """The page of a circuit: a language model and two names; a head is asked about."""
    importlib.import_module("vision").load()  # which transformers imports
    circuits = importlib.import_module("circuits")
    home = circuits.find_home() / circuits.FOLDER
    if not home.is_dir():
        print(f"circuit-page.png is left out: no {home} (make smollm2)")
        return
    R, tokens = circuits.measure_names(home)
    found = R.circuit(mass=0.9, positions=True)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "circuit.html"
        view = found.report(path, R, patch=True, labels=tokens, title=circuits.SENTENCE.format("John")).view
        with browsers.opened(browser, path.as_uri()) as page:
            head = max((n for n, node in enumerate(view["nodes"]) if node["kind"] == "head"),
                       key=lambda n: abs(view["nodes"][n]["share"]))  # fmt: skip
            page.locator(f'[data-circuit="{head}"]').click()
            page.locator("#circuit-name").fill("name mover")
            page.keyboard.press("Enter")
            save(page, "circuit-page", full_page=True)


def main() -> None:
    """Take those that are asked for, or all that can be taken."""
    makers = {maker.__name__: maker for maker in (digits, many, photo, story, written, molecule, circuit)}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "images")
    parser.add_argument("only", nargs="*", choices=[*makers, []], help="some of them")
    options = parser.parse_args()
    wanted = options.only or (list(makers) if HOME.exists() else ["digits", "many"])
    with browsers.launched() as browser, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in wanted:
            makers[name](browser, saver(options.out))


if __name__ == "__main__":
    main()

"""Commands that show: explore, demo."""

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from nrm.cli.answers import plan_view
from nrm.cli.ask import dry_run, opened
from nrm.cli.datasets import read_dataset
from nrm.cli.explain import LookOptions, Out, explain_all, is_page, refuse_place
from nrm.cli.inputs import Item, Sample, as_batch, on_device, read_inputs, transformed
from nrm.cli.models import Loaded
from nrm.cli.options import AsJson, DryRun, MeasureOptions, ModelName, ModelOptions
from nrm.cli.output import COMMAND, Terminal
from nrm.demo import read_digits
from nrm.demo.digits import LEARNED
from nrm.errors import InputError
from nrm.explorer import explore as start_explorer
from nrm.extras import extra
from nrm.results import replacing

with extra("cli", "the command line"):
    import typer

DEMO = "nrm.demo:digits"
Port = Annotated[int | None, typer.Option(help="Port on this machine; else a free one.")]
Browser = Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")]


def explore(
    model: ModelName,
    data: Annotated[
        list[str] | None, typer.Option("--data", help="Inputs to pick from: a folder, files, texts; may be repeated.")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="What relmax --store wrote: the samples in which nodes count most.")
    ] = None,
    dataset: Annotated[Path | None, typer.Option(help="The data set of the store, for pictures of them.")] = None,
    port: Port = None,
    browser: Browser = True,
    *,
    options: ModelOptions,
    settings: MeasureOptions,
    json: AsJson = False,
) -> int:
    """Look at decisions on a page of this machine: click nodes and ribbons, compare classes, ask formulas."""
    terminal = Terminal(json)
    _refuse_port(port)
    if settings.target is not None:
        raise InputError("the class is picked on the page", got=f"--target {settings.target}")
    loaded = opened(terminal, options, model)
    samples = None if dataset is None else read_dataset(loaded, dataset)
    return serve(
        terminal, loaded, _data(loaded, data or []), settings, port, browser, store=store, dataset=samples
    )  # fmt: skip


def serve(
    terminal: Terminal, loaded: Loaded, data: Any, settings: MeasureOptions, port: int | None, browser: bool,
    **more: Any,
) -> int:  # fmt: skip
    """Runs the explorer until it is stopped."""
    arguments = settings.arguments(loaded)
    del arguments["target"]

    def transform(image: Any) -> Any:
        return on_device(loaded, as_batch(transformed(loaded, image, "the page")))

    with contextlib.redirect_stdout(io.StringIO()):  # it would say its address, and a program wants JSON only
        explorer = start_explorer(
            loaded.model, data, transform=loaded.tokenizer if loaded.transform is None else transform,
            labels=loaded.labels, port=port, open=browser, block=False, **more, **arguments,
        )  # fmt: skip
    with explorer, contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends, also while it says its address
        terminal.say(f"explorer at {explorer.url}", "Ctrl-C ends it")
        terminal.finish("explore", model=loaded.describe(), url=explorer.url)
        explorer.wait()
    return 0


def _refuse_port(port: int | None) -> None:
    if port is not None and not 0 < port < 65536:
        raise InputError("not a port", got=str(port), expected="1 to 65535")


def _data(loaded: Loaded, given: Sequence[str]) -> Any:
    """What the explorer lists: a folder of images and texts as they are, as they have names; else inputs one by one."""
    if not given:
        return None
    items = read_inputs(loaded, given)
    if len(given) == 1 and Path(given[0]).is_dir() and loaded.transform is not None:
        return Path(given[0])
    if loaded.tokenizer is not None and [item.name for item in items] == list(given):
        return list(given)
    return [item.load().inputs for item in items]


def demo(
    sample: Annotated[int, typer.Option(help="Which digit is explained: 0 to 296.")] = 12,
    out: Out = None,
    images: Annotated[
        Path | None, typer.Option(help="Write the digits as images into this folder, to try other commands on.")
    ] = None,
    page: Annotated[bool, typer.Option("--explore", help="Look at the digits in the explorer.")] = False,
    port: Port = None,
    browser: Browser = True,
    *,
    look: LookOptions,
    settings: MeasureOptions,
    dry: DryRun = False,
    json: AsJson = False,
) -> int:
    """Explain a decision of a small network that the package carries; no download."""
    terminal = Terminal(json)
    _refuse_port(port)
    refuse_place(out, 1)
    if images is not None and images.exists() and not images.is_dir():
        raise InputError("there is a file in the place of the folder", got=str(images), expected="a folder")
    pixels, classes = (one[LEARNED:] for one in read_digits())
    if not 0 <= sample < len(pixels):
        raise InputError("no such digit", got=f"--sample {sample}", expected=f"0 to {len(pixels) - 1}")
    loaded = opened(terminal, ModelOptions(), DEMO)
    if page:
        return serve(terminal, loaded, pixels, settings, port, browser)
    item = Item(f"digit {sample}", lambda: Sample(pixels[sample : sample + 1]))
    arguments = settings.arguments(loaded)
    if dry:
        maps = is_page(out)
        return dry_run(
            terminal, "demo", loaded, [item], arguments, lambda R: plan_view(look.view(R, item.name, None), maps)
        )
    terminal.say(
        f"A network with {loaded.describe()['parameters']:,} parameters that has learned {LEARNED:,} handwritten "
        f"digits; of {len(pixels)} others, this is number {sample}, a {int(classes[sample])}."
    )
    code = explain_all(terminal, "demo", loaded, [item], arguments, look, out, [_opening(sample)])
    if images is not None:
        write_digits(images, pixels, classes)
        example = images / str(int(classes[sample])) / f"{sample:03}.png"
        terminal.say(f"written: {images}; try: python -m nrm explain {DEMO} {example}")
    return code


def write_digits(folder: Path, pixels: Any, classes: Any) -> None:
    """The digits as images, one folder for each class."""
    with extra("viz", "nrm demo --images"):
        from PIL import Image
    for number, (one, digit) in enumerate(zip(pixels, classes.tolist(), strict=True)):
        home = folder / str(digit)
        home.mkdir(parents=True, exist_ok=True)
        with replacing(home / f"{number:03}.png") as new:
            Image.fromarray((one[0] * 255).round().byte().numpy()).save(new, format="PNG")


def _opening(sample: int) -> str:
    return "\n".join(
        [
            f"# {COMMAND.get()}",
            "from nrm.demo import digits, read_digits",
            "from nrm.demo.digits import LEARNED",
            f"model, inputs = digits()[0], read_digits()[0][LEARNED + {sample}][None]",
        ]
    )

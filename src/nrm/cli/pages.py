"""Commands that show: explore, demo."""

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nrm.cli.answers import arguments_of, plan_view
from nrm.cli.ask import dry_run, opened
from nrm.cli.asked import DemoCommand, ExploreCommand
from nrm.cli.datasets import read_dataset
from nrm.cli.explain import explain_all, read_place, reference_lines, view_of
from nrm.cli.inputs import InputSample, NamedInput, as_batch, read_inputs, transformed
from nrm.cli.models import LoadedModel
from nrm.cli.options import MeasureOptions, ModelOptions
from nrm.cli.output import COMMAND, Terminal
from nrm.demo import LEARNED, read_digits
from nrm.errors import InputError
from nrm.explorer import explore as start_explorer
from nrm.extras import extra
from nrm.files import replacing
from nrm.jobs import on_device

DEMO = "nrm.demo:digits"


def explore(asked: ExploreCommand) -> int:
    """Look at decisions on a page of this machine: click nodes and ribbons, compare classes, ask formulas."""
    terminal = Terminal(asked.json)
    _refuse_port(asked.port)
    if asked.settings.target is not None:
        raise InputError("the class is picked on the page", got=f"--target {asked.settings.target}")
    loaded = opened(terminal, asked.options, asked.model)
    samples = None if asked.dataset is None else read_dataset(loaded, asked.dataset)
    return serve(
        terminal, loaded, _data(loaded, asked.data or []), asked.settings, asked.port, asked.browser,
        store=asked.store, dataset=samples,
    )  # fmt: skip


def serve(
    terminal: Terminal, loaded: LoadedModel, data: Any, settings: MeasureOptions, port: int | None, browser: bool,
    **more: Any,
) -> int:  # fmt: skip
    """Runs the explorer until it is stopped."""
    arguments = arguments_of(settings, loaded)
    del arguments["target"]

    def transform(image: Any) -> Any:
        return on_device(as_batch(transformed(loaded, image, "the page")), loaded.model)

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


def _data(loaded: LoadedModel, given: Sequence[str]) -> Any:
    """What the explorer lists: a folder of images and texts as they are, as they have names; else inputs one by one."""
    if not given:
        return None
    items = read_inputs(loaded, given)
    if len(given) == 1 and Path(given[0]).is_dir() and loaded.transform is not None:
        return Path(given[0])
    if loaded.tokenizer is not None and [item.name for item in items] == list(given):
        return list(given)
    return [item.load().inputs for item in items]


def demo(asked: DemoCommand) -> int:
    """Explain a decision of a small network that the package carries; no download."""
    terminal = Terminal(asked.json)
    _refuse_port(asked.port)
    place = read_place(asked.out, 1, asked.json)
    if asked.images is not None and asked.images.exists() and not asked.images.is_dir():
        raise InputError("there is a file in the place of the folder", got=str(asked.images), expected="a folder")
    pixels, classes = (one[LEARNED:] for one in read_digits())
    if not 0 <= asked.sample < len(pixels):
        raise InputError("no such digit", got=f"--sample {asked.sample}", expected=f"0 to {len(pixels) - 1}")
    loaded = opened(terminal, ModelOptions(), DEMO)
    if asked.page:
        return serve(terminal, loaded, pixels, asked.settings, asked.port, asked.browser)
    item = NamedInput(f"digit {asked.sample}", lambda: InputSample(pixels[asked.sample : asked.sample + 1]))
    arguments = arguments_of(asked.settings, loaded)
    if asked.dry:
        return dry_run(
            terminal, "demo", loaded, [item], arguments,
            lambda R: plan_view(view_of(asked.look, R, item.name, None), place.pages, asked.look.fast),
        )  # fmt: skip
    terminal.say(
        f"A network with {loaded.describe()['parameters']:,} parameters that has learned {LEARNED:,} handwritten "
        f"digits; of {len(pixels)} others, this is number {asked.sample}, a {int(classes[asked.sample])}."
    )
    code = explain_all(terminal, "demo", loaded, [item], arguments, asked.look, place, [_opening(asked)])
    if asked.images is not None:
        write_digits(asked.images, pixels, classes)
        example = asked.images / str(int(classes[asked.sample])) / f"{asked.sample:03}.png"
        terminal.say(f"written: {asked.images}; try: python -m nrm explain {DEMO} {example}")
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


def _opening(asked: DemoCommand) -> str:
    against = next(iter(asked.settings.against or ()), None)
    reading = f"read_inputs(load_model({DEMO!r}), [{against!r}])[0].load().inputs"
    made = reference_lines(against, reading)
    return "\n".join(
        [
            f"# {COMMAND.get()}",
            "from nrm.demo import digits, read_digits",
            "from nrm.demo.digits import LEARNED",
            f"model, inputs = digits()[0], read_digits()[0][LEARNED + {asked.sample}][None]",
            *(["from nrm.cli import load_model, read_inputs"] if made else []),
            *made,
        ]
    )

"""The command for heat maps of many images: heatmaps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from nrm.cli.answers import arguments_of
from nrm.cli.ask import opened
from nrm.cli.asked import HeatmapsCommand
from nrm.cli.datasets import name_of, read_classes, read_dataset
from nrm.cli.explain import refuse_file
from nrm.cli.folder import RESOLUTION, write_json
from nrm.cli.output import Terminal
from nrm.errors import InputError, readable
from nrm.jobs import Heatmap, heatmaps as make_heatmaps
from nrm.measure import LABEL, output_names
from nrm.plot import save_and_close

PICTURES = "pictures"


def heatmaps(asked: HeatmapsCommand) -> int:
    """Heat maps of many images, as pictures and numbers in a folder."""
    terminal = Terminal(asked.json)
    refuse_file(asked.out)
    loaded = opened(terminal, asked.options, asked.model)
    dataset = read_dataset(loaded, asked.data)
    if asked.out.resolve() == asked.data.resolve():
        raise InputError("the maps would lie among the data", got=f"--out {asked.out}", expected="a folder of its own")
    own = asked.settings.target == LABEL
    arguments = arguments_of(replace(asked.settings, target=None if own else asked.settings.target), loaded)
    classes = None
    if own:
        arguments["target"] = LABEL
        classes = read_classes(loaded, dataset, asked.class_names, asked.options.labels)
    labels = None if loaded.labels is None else {"output": loaded.labels}
    names, results = output_names(labels), []
    with terminal.work("heatmaps") as steps:
        steps.tell("running the network")
        made = make_heatmaps(
            loaded.model, dataset, store=asked.out, memory=asked.memory, batch_size=asked.batch_size,
            max_errors=asked.max_errors, class_names=classes, labels=labels, progress=False, **arguments,
        )  # fmt: skip
        for number, one in enumerate(made):
            steps.tell("drawing")
            results.append(_result(one, dataset, names) | {"picture": _draw(asked.out, one)})
            steps.tell(f"heat maps, {number + 1} of {made.samples}")
    errors = [{"sample": sample, "name": name_of(dataset, sample), "error": text} for sample, text in made.errors]
    for error in errors:
        terminal.note(f"left out: {error['name']}: {error['error']}")
    terminal.table(
        ["input", "explained", "value"], [(r["name"], r["label"] or r["target"], f"{r['value']:.4g}") for r in results],
        right=(2,),
    )  # fmt: skip
    terminal.say(f"written: {asked.out}")
    whole = terminal.finish("heatmaps", model=loaded.describe(), results=results, errors=errors)
    write_json(asked.out / "index.json", whole)
    return 0


def _result(one: Heatmap, dataset: Any, names: dict[int, str]) -> dict[str, Any]:
    label = names.get(-1 if one.target is None else one.target)
    return {
        "sample": one.number, "name": name_of(dataset, one.number), "target": one.target, "label": label,
        "prediction": one.prediction, "value": one.value, "total": float(one.relevance.sum()),
        "file": readable(f"maps/{one.name}.safetensors"),
    }  # fmt: skip


def _draw(out: Path, one: Heatmap) -> str | None:
    """The picture of a map of an image, unless it is there already; its name."""
    if one.relevance.ndim < 2:
        return None
    name = one.name if one.name.lower().endswith(".png") else f"{one.name}.png"
    path = out / PICTURES / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_and_close(one.draw().figure, path, dpi=RESOLUTION, tight=False)
    return readable(f"{PICTURES}/{name}")

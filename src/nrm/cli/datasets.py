"""The command for data sets: the samples in which blocks count most."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nrm.cli.answers import Data, arguments_of, cost, line, open_measure, sweeps, timed
from nrm.cli.ask import opened, show_cost
from nrm.cli.asked import RelmaxCommand
from nrm.cli.inputs import InputSample, as_batch, tensor_samples
from nrm.cli.models import LoadedModel
from nrm.cli.names import read_class_names
from nrm.cli.notation import read_question, read_target
from nrm.cli.output import Terminal
from nrm.errors import InputError, NrmError, QuestionError, readable
from nrm.files import TENSORS
from nrm.jobs import Images, LeadingBlocks, Ranking, on_device, relmax as run_relmax, split_label
from nrm.measure import LABEL, Classes, dataset_names, match_classes, output_names
from nrm.numbers import percent
from nrm.plot import gallery, read_image, save_and_close
from nrm.questions import Partition, Set

PICTURES = (".png", ".svg", ".pdf")
SHOWN, WIDE = 5, 9
"""How many samples of a block are printed, and drawn on a contact sheet."""

AskedParts = tuple[Partition | Set, ...]


def relmax(asked: RelmaxCommand) -> int:
    """The samples of a data set in which channels, sets or pairs have the largest relevance, and where in them."""
    terminal = Terminal(asked.json)
    questions = [read_question(text) for text in asked.ask]
    _refuse(asked.job.store, asked.sheet, asked.blocks)
    loaded = opened(terminal, asked.options, asked.model)
    dataset = read_dataset(loaded, asked.data)
    if asked.sheet is not None:
        _refuse_no_picture(dataset)
        _refuse_inside(asked.sheet, dataset)
    own = asked.settings.target == LABEL
    arguments = arguments_of(replace(asked.settings, target=None if own else asked.settings.target), loaded)
    if asked.class_names is not None and not own:
        raise InputError(
            "only --target label reads the classes of the data set", got=f"--class-names {asked.class_names}"
        )
    classes = read_classes(loaded, dataset, asked.class_names, asked.options.labels) if own else None
    wanted = None if asked.of_class is None else _read_class(asked.of_class, loaded, classes)
    if asked.dry:
        return _dry_run(terminal, loaded, dataset, questions, arguments)
    if own:
        arguments["target"] = LABEL
    labels = None if loaded.labels is None else {"output": loaded.labels}
    with terminal.warnings():
        shown = None if terminal.interactive else False
        found = run_relmax(
            loaded.model,
            dataset,
            *questions,
            class_names=classes,
            labels=labels,
            progress=shown,
            **asdict(asked.job),
            **arguments,
        )
        arguments.pop("target")
        best = [found.best(*question, k=asked.blocks, target=wanted) for question in questions]
        results = [
            ranking_of(found, n, question, best[n], dataset, output_names(labels))
            for n, question in enumerate(questions)
        ]
        if asked.sheet is not None:
            rows = [sets for n, question in enumerate(questions) for sets in sets_of(found, n, question, best[n])]
            draw_sheet(asked.sheet, found, rows, loaded, dataset, arguments)
    for result in results:
        _show(terminal, result, wanted)
    errors = [{"sample": sample, "name": name_of(dataset, sample), "error": text} for sample, text in found.errors]
    for error in errors:
        terminal.note(f"left out: {error['name']}: {error['error']}")
    files = [str(path) for path in (asked.job.store, asked.sheet) if path is not None]
    if files:
        terminal.say(f"written: {', '.join(files)}")
    facts = {"model": loaded.describe(), "samples": found.count, "class": wanted, "errors": errors}
    terminal.finish("relmax", **facts, results=results, files=files)
    return 0


def read_dataset(loaded: LoadedModel, path: Path) -> Any:
    """A data set of samples without a sample axis: a folder of images, or the samples of a file of tensors."""
    if path.is_dir():
        if loaded.transform is None:
            raise InputError("the model takes no images", got=str(path), where=loaded.name)
        images = Images(path, loaded.transform.of)
        if not len(images):
            raise InputError("the folder has no images", got=str(path))
        return images
    if not path.is_file() or path.suffix.lower() not in TENSORS:
        expected = f"a folder of images, or a file ({', '.join(TENSORS)}) with samples first"
        raise InputError("not a data set", got=str(path), expected=expected)
    return [_without_axis(sample.inputs) for sample in tensor_samples(path, loaded, batch=True)]


def read_classes(loaded: LoadedModel, dataset: Any, given: Path | None, labels: Path | None) -> dict[str, int] | None:
    """The outputs that the classes of a data set are, by name; None if they have none."""
    names = dataset_names(dataset)
    if names is None:
        raise InputError("the data has no classes", got="--target label", expected="a folder of images for each class")
    try:
        called = read_class_names(given, labels, dataset)
        return Classes(names, match_classes(names, {"output": loaded.labels}, called)).describe()
    except QuestionError as error:
        hint = 'folders named as the outputs, --labels FILE, or --class-names FILE with {"folder": OUTPUT, ...}'
        raise InputError(error.what, got=error.got, expected=error.expected, hint=hint) from None


def _read_class(text: str, loaded: LoadedModel, classes: Mapping[str, int] | None) -> int:
    """A class whose samples are asked for, by number or by a name of the model's or the data set's."""
    known = {} if classes is None else {**classes}
    wanted = known[text] if text in known else read_target(text, loaded.labels, tokens=False)
    if type(wanted) is not int or (classes is not None and wanted not in known.values()):
        expected = ", ".join(f"{n} ({name})" for name, n in known.items()) or "a class by number or name"
        raise InputError("no such class", got=f"--of-class {text}", expected=expected[:200])
    return wanted


def _without_axis(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: value[0] for name, value in inputs.items()}
    return inputs[0]


def name_of(dataset: Any, number: int) -> str:
    """What a person calls a sample."""
    return readable(dataset.files[number]) if isinstance(dataset, Images) else f"sample {number}"


def ranking_of(
    found: Ranking, number: int, question: AskedParts, best: LeadingBlocks, dataset: Any, names: Mapping[int, str]
) -> Data:
    """The best blocks of the question of this number, and the best samples of each."""
    listed = []
    for sets, mean, bounds in zip(sets_of(found, number, question, best), best.means, best.bounds, strict=True):
        hits = found.top(*sets)
        samples = [
            {
                "sample": hit.sample,
                "name": name_of(dataset, hit.sample),
                "score": hit.score,
                "place": hit.place,
                "target": hit.target,
                "label": names.get(-1 if hit.target is None else hit.target),
            }
            for hit in hits
        ]
        row = {"block": " x ".join(map(str, sets)), "mean": mean, "bounds": bounds, "samples": samples}
        listed.append(row | {"complete": hits.complete})
    asked, limit = " x ".join(map(str, question)), best.limit if math.isfinite(best.limit) else None
    return {"question": asked, "blocks": listed, "limit": limit, "complete": best.complete, "note": best.note}


def sets_of(found: Ranking, number: int, question: AskedParts, best: LeadingBlocks) -> Iterator[AskedParts]:
    """The sets of the best blocks of a question."""
    shapes = [part["shape"] for part in found.facts["questions"][number]["parts"]]
    for index in best.indices:
        places = iter(index)
        sets = []
        for part, shape in zip(question, shapes, strict=True):
            at = tuple(next(places) for _ in shape)
            sets.append(part[at[0] if len(at) == 1 else at] if isinstance(part, Partition) else part)
        yield tuple(sets)


def draw_sheet(
    path: Path,
    found: Ranking,
    rows: Sequence[AskedParts],
    loaded: LoadedModel,
    dataset: Any,
    arguments: Mapping[str, Any],
) -> None:
    """A contact sheet: a row for every block, with its best samples."""
    wide = min(WIDE, found.facts["k"])
    figure = gallery(found, *rows, k=wide, model=loaded.model, dataset=dataset, **arguments)
    save_and_close(figure, path, tight=False)


def _refuse(store: Path | None, sheet: Path | None, blocks: int) -> None:
    """Refuses stores, contact sheets and numbers of blocks that would fail after hours of work."""
    if store is not None and store.exists() and not store.is_dir():
        raise InputError("there is a file in the place of the store", got=str(store), expected="a folder")
    if sheet is not None and (sheet.suffix.lower() not in PICTURES or not sheet.absolute().parent.is_dir()):
        expected = f"a file ({', '.join(PICTURES)}) in a folder that exists"
        raise InputError("the contact sheet cannot be written there", got=str(sheet), expected=expected)
    if blocks < 1:
        raise InputError("not a number of blocks", got=str(blocks), expected="at least 1")


def _refuse_inside(sheet: Path, dataset: Any) -> None:
    """Refuses to put a picture among those of the data set, where the next run would take it for a sample."""
    if isinstance(dataset, Images) and sheet.resolve().is_relative_to(dataset.folder.resolve()):
        raise InputError(
            "the contact sheet would become a part of the data set", got=str(sheet),
            expected=f"a file outside of {dataset.folder}",
        )  # fmt: skip


def _refuse_no_picture(dataset: Any) -> None:
    if not isinstance(dataset, Images):
        try:
            read_image(dataset[0])
        except (NrmError, ValueError, TypeError) as error:
            raise InputError(
                "a contact sheet needs pictures", got="samples that are none", hint="no --sheet"
            ) from error


def _dry_run(
    terminal: Terminal, loaded: LoadedModel, dataset: Any, questions: Sequence[AskedParts], arguments: Mapping[str, Any]
) -> int:
    with terminal.work("planning"):
        inputs, _ = split_label(dataset[0])
        sample = InputSample(on_device(as_batch(inputs), loaded.model))
        R, seconds = timed(lambda: open_measure(loaded, sample, arguments))
        lines = [sweeps(), *(line(" x ".join(map(str, q)), R.plan(*q)) for q in questions)]
        found = cost(lines, seconds, len(dataset))
    show_cost(terminal, found)
    terminal.finish("relmax", model=loaded.describe(), plan=found)
    return 0


def _show(terminal: Terminal, result: Mapping[str, Any], label: int | None) -> None:
    among = "" if label is None else f" for class {label}"
    terminal.title(f"{result['question']}: the blocks with the largest mean share{among}")
    rows = []
    for row in result["blocks"]:
        low, high = row["bounds"]
        mean = percent(row["mean"], 2) + (f" ({percent(low, 2)} to {percent(high, 2)})" if low < high else "")
        best = ", ".join(f"{one['name']} ({one['score']:.3g})" for one in row["samples"][:SHOWN])
        rows.append((row["block"], mean, best))
    terminal.table(["block", "mean", "best samples"], rows, right=(1,))
    if result["note"]:
        terminal.note(result["note"])

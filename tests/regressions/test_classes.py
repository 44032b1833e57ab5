"""Classes of data sets are matched with the outputs of a model by name, never by their order."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import nrm
from jobs.shop import A, network
from nrm.demo import digits, read_digits
from nrm.measure.classes import dataset_names, match_classes

RELU3 = nrm.layer("relu3")
PETS = {"output": ["eel", "cat", "dog"]}


class Named(Dataset[Any]):
    """Pictures with labels whose classes have names, as torchvision's data sets have them."""

    def __init__(self, classes: list[Any], count: int = 6) -> None:
        self.x = torch.rand(count, 1, 10, 10, generator=torch.Generator().manual_seed(3))
        self.classes = classes

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return self.x[number], number % len(self.classes)


class Hugging:
    """A data set as Hugging Face gives it: mappings, and features that know the names of classes."""

    def __init__(self, names: list[str]) -> None:
        self.x = torch.rand(4, 1, 10, 10, generator=torch.Generator().manual_seed(3))
        kind = type("ClassLabel", (), {"names": names})
        self.features = {"input": object(), "label": kind()}

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"input": self.x[number], "label": number % 2}


def write_digits(home: Path, *wanted: int, count: int = 3) -> Path:
    image = pytest.importorskip("PIL.Image")
    pixels, classes = read_digits()
    for digit in wanted:
        (home / str(digit)).mkdir(parents=True)
        for i in (classes == digit).nonzero()[:count, 0].tolist():
            image.fromarray((pixels[i, 0] * 255).round().byte().numpy()).save(home / str(digit) / f"{i}.png")
    return home


def test_digits_in_folders_4_and_9_are_explained_as_4_and_9(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    home = write_digits(tmp_path / "digits", 4, 9)
    model, transform, names = digits()
    for labels in (None, {"output": list(names)}):  # the outputs are called "digit 4", or nothing
        found = nrm.relmax(
            model, home, RELU3.channels, target="label", transform=transform, labels=labels, progress=False
        )
        hits = found.top(RELU3.channel(0))
        assert {hit.target for hit in hits} == {hit.label for hit in hits} == {4, 9}
        assert found.classes(RELU3.channels) == [4, 9]
        assert len(found.samples_of(4)) == len(found.samples_of(9)) == 3


def test_folders_are_matched_with_the_names_of_outputs(tmp_path: Path) -> None:
    assert match_classes(["cat", "Dog"], PETS) == (1, 2)
    assert match_classes(["train/cat", "train/dog"], PETS) == (1, 2)
    assert match_classes(["great_white_shark"], {"output": {5: "great white shark, white shark"}}) == (5,)
    assert match_classes(["7", "03"], outputs=10) == (7, 3)
    assert match_classes(["1", "0"], {"output": ["1", "0"]}) == (0, 1)  # names before numbers
    wnids = {"n02123045": "cat", "n02084071": 2}
    assert match_classes(["n02084071", "n02123045"], PETS, wnids) == (2, 1)
    assert match_classes(["b", "c"], None, ["a", "b", "c"], outputs=3) == (1, 2)
    assert match_classes(["n1", "n0"], PETS, {0: ["n0", "eel"], 1: ["n1", "cat"]}) == (1, 0)


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        (["cat", "dog"], {"outputs": 3}, ["cat, dog", "0 to 2", "class_names"]),
        (["cat", "cow"], {"labels": PETS}, ["cat, cow", "no single output for cow", "eel, cat, dog"]),
        (["4", "12"], {"outputs": 10}, ["4, 12", "0 to 9"]),
        (["crane"], {"labels": {"output": ["crane", "ox", "crane"]}}, ["crane", "ox"]),
        (["cat", "cow"], {"given": {"cat": 1}}, ["cow", "class_names has cat"]),
        (["cat"], {"given": {"cat": 7}, "outputs": 3}, ["class_names['cat'] = 7", "0 to 2"]),
        (["cat"], {"given": {"cat": "whale"}, "labels": PETS}, ["'whale'", "eel, cat, dog"]),
        (["cat"], {"given": "cat"}, ["class_names='cat'"]),
    ],
)
def test_what_does_not_match_is_refused_with_both_lists(
    names: list[str], options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(nrm.QuestionError) as caught:
        match_classes(names, **options)
    for word in words:
        assert word in str(caught.value)


def test_data_sets_with_named_classes_are_matched_too() -> None:
    data = Named(["dog", "cat"])
    for source in (data, Subset(data, [0, 1, 2, 3]), ConcatDataset([data, data]), Hugging(["dog", "cat"])):
        assert dataset_names(source) == ("dog", "cat")
        options = {"k": 4, "target": "label", "labels": PETS, "progress": False}
        found = nrm.relmax(network(), source, A.channels, **options)
        assert {(hit.sample % 2, hit.target) for hit in found.top(A.channel(0))} == {(0, 2), (1, 1)}
        with pytest.raises(nrm.QuestionError, match="not the model's outputs by name"):
            nrm.relmax(network(), source, A.channels, target="label")
    assert dataset_names(Named([("tench", "Tinca tinca")])) == ("tench, Tinca tinca",)
    with pytest.raises(nrm.QuestionError, match="number their classes differently"):
        nrm.relmax(network(), ConcatDataset([data, Named(["cat", "dog"])]), A.channels, target="label", labels=PETS)


def test_streams_and_recipes_match_by_name() -> None:
    data = Named(["dog", "cat"])
    loader = DataLoader(data, batch_size=3)
    s = nrm.stream(network(), loader, {"a": A.channels}, target="label", labels=PETS, progress=False)
    assert s.count(by="label") == s.count(by="target") == {1: 3, 2: 3}
    with pytest.raises(nrm.QuestionError, match="not the model's outputs by name"):
        nrm.stream(network(), loader, {"a": A.channels}, target="label")
    mapped = {"dog": 0, "cat": 2}
    recipe = nrm.methods.relmax(network(), data, A.channels, target="label", class_names=mapped, k=6)
    own = nrm.relmax(network(), data, A.channels, target=[0, 2] * 3, k=6, progress=False)
    assert recipe.samples[0].tolist() == [hit.sample for hit in own.top(A.channel(0))]


def test_a_class_name_is_a_target() -> None:
    x = torch.rand(2, 1, 10, 10, generator=torch.Generator().manual_seed(0))
    for target, numbers in (("dog", [2, 2]), (["cat", "eel"], [1, 0]), ([2, "cat"], [2, 1])):
        assert nrm.measure(network(), x, target=target, labels=PETS).target.tolist() == numbers
    with pytest.raises(nrm.QuestionError, match="unknown target 'dgo'") as caught:
        nrm.measure(network(), x, target="dgo", labels=PETS)
    assert "'dog'" in str(caught.value)
    with pytest.raises(nrm.QuestionError, match="the outputs have no names"):
        nrm.measure(network(), x, target="dog")
    with pytest.raises(nrm.QuestionError, match="several classes have this name"):
        nrm.measure(network(), x, target="crane", labels={"output": ["crane", "ox", "crane"]})
    with pytest.raises(nrm.QuestionError, match="a single prediction has no label"):
        nrm.measure(network(), x, target="label")
    found = nrm.relmax(network(), x, A.channels, target="dog", labels=PETS)
    assert {hit.target for hit in found.top(A.channel(0))} == {2}


def test_targets_is_refused_and_target_is_named() -> None:
    x = torch.rand(2, 1, 10, 10)
    for call in (
        lambda **more: nrm.measure(network(), x, **more),
        lambda **more: nrm.relmax(network(), x, A.channels, **more),
        lambda **more: nrm.stream(network(), [x], {"a": A.channels}, **more),
        lambda **more: nrm.methods.relmax(network(), x, A.channels, **more),
        lambda **more: nrm.heatmaps(network(), x, **more),
        lambda **more: nrm.explore(network(), x, block=False, open=False, **more),
    ):
        with pytest.raises(nrm.QuestionError, match=r"try: +target="):
            call(targets="label")
        with pytest.raises(nrm.QuestionError, match=r"try: +rules="):
            call(rule="lrp-0")
    with pytest.raises(nrm.QuestionError, match=r"try: +target="):
        nrm.compat.captum.LRP(network(), targets=1)
    assert inspect.signature(nrm.measure).parameters["target"].default is None


def test_relmax_takes_target_label() -> None:
    """It was a raw TypeError."""
    with pytest.raises(nrm.NrmError, match="the sample has no label"):
        nrm.relmax(network(), torch.rand(2, 1, 10, 10), A.channels, target="label")


def test_the_name_of_a_folder_is_read_by_the_explorer_and_refused_elsewhere(tmp_path: Path) -> None:
    """Its letters were taken for samples."""
    pytest.importorskip("sklearn")
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    home = write_digits(tmp_path / "digits", 4, 9)
    model, transform, _ = digits()
    found = nrm.relmax(model, home, RELU3.channels, target="label", k=3, transform=transform, progress=False)
    page = nrm.explore(model, home, transform=transform, store=found, dataset=str(home), open=False, block=False)
    with page:
        references = page._session._references
        assert references is not None
        shown = references.of([RELU3.channel(0)])
        assert shown is not None
        assert {hit["label"] for hit in shown["hits"]} <= {"class 4", "class 9"}
        assert all(hit["picture"] is not None for hit in shown["hits"])
    R = nrm.measure(model, read_digits()[0][:1])
    for call in (
        lambda: R.report(store=found, dataset=str(home)),
        lambda: nrm.plot.gallery(found, RELU3.channel(0), k=3, dataset=home),
        lambda: nrm.jobs.Crops(model, str(home), RELU3.channel(0)),
    ):
        with pytest.raises(nrm.QuestionError, match="the name of a folder is no data set"):
            call()


def test_labels_that_were_not_matched_keep_the_data_sets_names(tmp_path: Path) -> None:
    """Beside a node, samples of the folders 4 and 9 were called as the outputs 0 and 1."""
    pytest.importorskip("sklearn")
    home = write_digits(tmp_path / "digits", 4, 9)
    model, transform, names = digits()
    found = nrm.relmax(model, home, RELU3.channels, k=3, transform=transform, progress=False)
    R = nrm.measure(model, read_digits()[0][:1], labels={"output": list(names)})
    view = nrm.report.View(R, layers=["relu3", "output"], store=found, dataset=nrm.jobs.Images(home, transform))
    shown = view.examples([(0, 0)])
    assert shown is not None
    assert {hit["label"] for hit in shown["hits"]} <= {"4", "9"}


class Written(nn.Module):
    """A small language model: every position says something about the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix, self.head = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 9)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.words(input_ids).cumsum(1)).relu())


def test_the_target_of_a_language_model_can_be_given_back() -> None:
    """It has a row of two numbers for each sample, which were refused."""
    model, ids = Written().eval(), torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1], [5, 6, 7, 8]])
    R = nrm.measure(model, ids, target=([0, 3, 2], [4, 5, 6]))
    assert R.target.tolist() == [[0, 4], [3, 5], [2, 6]]
    rows = R.target
    for given in (rows, rows.numpy(), rows.tolist(), [tuple(row) for row in rows.tolist()]):
        again = nrm.measure(model, ids, target=given)
        assert torch.equal(again.target, rows)
        assert torch.equal(again(again.input), R(R.input))
    assert nrm.measure(model, ids[1:2], target=R.sample(1).target).target.tolist() == [[3, 5]]
    assert torch.equal(nrm.measure(model, ids, target=R.prediction).target, R.prediction)
    for bad, words in (
        (rows[:2], "targets and samples do not match"), (rows[:, :1], "2 indices"), (rows.float(), "a class index"),
        (rows + 4, "out of range"), ([[0, 4], [3], [2, 6]], "2 indices"),
    ):  # fmt: skip
        with pytest.raises(nrm.QuestionError, match=words):
            nrm.measure(model, ids, target=bad)


def test_a_number_that_is_not_whole_is_no_class() -> None:
    """It was cut off, so that another class was explained."""
    x = torch.rand(3, 1, 10, 10)
    for target in ([1.5, 2, 0], torch.tensor([0.9, 1.0, 2.0]), [True, False, True], [[0, 1], [0, 2], [0, 0]]):
        for job in (
            lambda t: nrm.relmax(network(), x, A.channels, target=t),
            lambda t: list(nrm.heatmaps(network(), x, target=t)),
        ):
            with pytest.raises(nrm.QuestionError, match="the target of a sample is a class"):
                job(target)


def test_the_script_of_a_report_repeats_a_target_that_is_a_set() -> None:
    R = nrm.measure(network(), torch.rand(1, 1, 10, 10), target=nrm.output[:2])
    script = nrm.report.View(R, layers=["1", "4"]).script.view()
    assert f"target={nrm.output[:2]!r}, " in script

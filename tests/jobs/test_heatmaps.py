"""Heat maps of many samples are those of each, whatever the batches, and a stopped job goes on where it was."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nrm
from jobs.processes import TESTS, start
from jobs.shop import A, Flowing, Squares, network

room = importlib.import_module("nrm.jobs.heatmaps")
DATA = Squares(11)


def alone(i: int, *question: Any, target: Any = None, **options: Any) -> torch.Tensor:
    """The slow truth: a measure of one sample."""
    R = nrm.measure(network(), DATA.x[i : i + 1], target=target, **options)
    return R(*(question or (R.input,)))[0]


def pictures(folder: Path) -> Path:
    """Three grey pictures, two of them in folders."""
    image = pytest.importorskip("PIL.Image")
    for k, name in enumerate(("0/a.png", "1/a.png", "b.png")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image.fromarray((DATA.x[k, 0] * 255).to(torch.uint8).numpy()).save(folder / name)
    return folder


def as_tensor(image: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(image.convert("L").tobytes()), dtype=torch.uint8).reshape(1, 10, 10) / 255


# ---- images in, maps out ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [
        DATA, Flowing(DATA), DATA.x, [(x, i % 3) for i, x in enumerate(DATA.x)],
        DataLoader(DATA, batch_size=4), DataLoader(DATA, batch_size=None), DataLoader(Flowing(DATA), batch_size=3),
    ], ids=["dataset", "iterable", "tensor", "pairs", "loader", "loader of samples", "loader of an iterable"],
)  # fmt: skip
def test_maps_are_those_of_each_sample(data: Any) -> None:
    found = list(nrm.heatmaps(network(), data, batch_size=3, progress=False))
    assert [one.number for one in found] == list(range(11))
    for one in found:
        assert one.relevance.shape == (1, 10, 10)
        torch.testing.assert_close(one.relevance, alone(one.number), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(one.input, DATA.x[one.number])
    R = nrm.measure(network(), DATA.x)
    assert [one.target for one in found] == [one.prediction for one in found] == R.prediction.tolist()
    torch.testing.assert_close(torch.tensor([one.value for one in found]), R.value)


def test_a_folder_of_images(tmp_path: Path) -> None:
    found = list(nrm.heatmaps(network(), pictures(tmp_path), transform=as_tensor, progress=False))
    assert [one.name for one in found] == ["0/a.png", "1/a.png", "b.png"]
    for one in found:
        R = nrm.measure(network(), one.input[None])
        torch.testing.assert_close(one.relevance, R(R.input)[0], rtol=1e-4, atol=1e-6)


def test_folders_are_matched_by_name(tmp_path: Path) -> None:
    data = pictures(tmp_path)
    (data / "b.png").unlink()
    (data / "0").rename(data / "2")
    options: dict[str, Any] = {"transform": as_tensor, "target": "label", "progress": False}
    assert {one.name: one.target for one in nrm.heatmaps(network(), data, **options)} == {"1/a.png": 1, "2/a.png": 2}
    (data / "1").rename(data / "cat")
    with pytest.raises(nrm.QuestionError, match=r"by name[\s\S]*class_names"):
        nrm.heatmaps(network(), data, **options)
    found = nrm.heatmaps(network(), data, class_names={"cat": 0, "2": 1}, **options)
    assert [one.target for one in found] == [1, 0]
    with pytest.raises(nrm.QuestionError, match="target="):
        nrm.heatmaps(network(), data, targets="label", transform=as_tensor)


@pytest.mark.parametrize("target", ["label", 2, [i % 3 for i in range(11)], None])
def test_targets(target: Any) -> None:
    maps = nrm.heatmaps(network(), DATA, target=target, progress=False)
    for one in maps:
        wanted = {"label": one.number % 3, None: one.prediction}.get(
            target if not isinstance(target, list) else "label"
        )
        assert one.target == (2 if target == 2 else wanted)
        torch.testing.assert_close(one.relevance, alone(one.number, target=one.target), rtol=1e-4, atol=1e-6)
    assert one.label == 10 % 3


def test_other_questions() -> None:
    for question in ((nrm.input.positions,), (nrm.input, A.channel(2)), (A.channels,)):
        for one in nrm.heatmaps(network(), DATA.x[:3], *question, bias="input", progress=False):
            expected = alone(one.number, *question, bias="input")
            torch.testing.assert_close(one.relevance, expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(nrm.QuestionError, match="unknown layer"):
        nrm.heatmaps(network(), DATA, nrm.layer("nowhere"))


def test_images_of_different_sizes() -> None:
    sizes = [(8, 8), (12, 10), (8, 8)]
    found = list(nrm.heatmaps(network(), [torch.rand(1, *size) for size in sizes], progress=False))
    assert [tuple(one.relevance.shape) for one in found] == [(1, *size) for size in sizes]


def test_it_is_made_while_it_is_asked_for(tmp_path: Path) -> None:
    read = tmp_path / "read"
    maps = nrm.heatmaps(network(), Squares(40, trace=read), batch_size=2, progress=False)
    next(maps)
    assert len(set(read.read_text().split())) < 12
    assert repr(maps) == "heat maps: 1 of 40 samples done, 2 at a time"
    maps.close()
    with pytest.raises(StopIteration):
        next(maps)


# ---- batches from memory ---------------------------------------------------------------------------------------------


def test_batches_are_chosen_from_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    opened = room.open_measure

    def spy(inquiry: Any, samples: Any) -> Any:
        sizes.append(len(samples))
        return opened(inquiry, samples)

    monkeypatch.setattr(room, "open_measure", spy)
    one = nrm.measure(network(), DATA.x[:1])
    one(one.input)
    tape = one.inner.tape.nbytes  # an eighth of the memory holds this many times the batch
    for memory, size in ((8 * 2 * tape, 2), (8 * 5 * tape, 5), (one.nbytes, 1)):
        sizes.clear()
        maps = nrm.heatmaps(network(), DATA.x, memory=memory, progress=False)
        assert len(list(maps)) == 11
        assert maps.batch_size == size
        assert max(sizes) == size
    assert nrm.heatmaps(network(), DATA.x).batch_size == room.MOST
    assert nrm.heatmaps(network(), DATA.x, memory=one.nbytes, batch_size=7).batch_size == 7


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    list(nrm.heatmaps(network(), DATA, progress=True))
    assert "0/11" in capsys.readouterr().err
    list(nrm.heatmaps(network(), DATA, progress=False))
    assert not capsys.readouterr().err


# ---- into a folder ---------------------------------------------------------------------------------------------------


def test_a_stopped_job_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(
        nrm.heatmaps(network(), DATA, target="label", store=tmp_path / "whole", batch_size=4, progress=False)
    )
    maps = nrm.heatmaps(network(), DATA, target="label", store=tmp_path / "s", batch_size=4, progress=False)
    for _ in range(5):
        next(maps)
    maps.close()
    done = set(os.listdir(tmp_path / "s" / "maps"))
    assert done == {f"{i:08d}.safetensors" for i in range(8)}
    measured: list[int] = []
    opened = room.open_measure

    def spy(inquiry: Any, samples: Any) -> Any:
        measured.extend(sample.number for sample in samples)
        return opened(inquiry, samples)

    monkeypatch.setattr(room, "open_measure", spy)
    again = nrm.heatmaps(network(), DATA, target="label", store=tmp_path / "s", progress=False)
    assert again.batch_size == 4  # as it was begun, whatever the memory is now
    for one, same in zip(again, expected, strict=True):
        assert torch.equal(one.relevance, same.relevance)
        assert torch.equal(one.input, same.input)
        assert (one.number, one.name, one.value, one.target, one.prediction, one.label) == (
            same.number, same.name, same.value, same.target, same.prediction, same.label,
        )  # fmt: skip
    assert measured == [0, 8, 9, 10]  # the first to see that nothing has changed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_kill_at_every_write_point(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    job = start([sys.executable, str(TESTS / "jobs" / "killing_maps.py"), str(tmp_path)], stdout=subprocess.PIPE)
    points = job.communicate(timeout=600)[0].split()
    assert job.returncode == 0
    assert {"fsync", "open", "os.mkdir", "os.rename"} <= set(points)


@pytest.mark.parametrize(
    ("change", "named"), [
        ({"model": network(5)}, "model"),
        ({"rules": "gamma-box"}, "rules"),
        ({"target": 1}, "data"),
        ({"data": Squares(11, seed=2)}, "data"),
        ({"data": Squares(12)}, "data"),
        ({"question": (nrm.input.positions,)}, "questions"),
        ({"bias": "input"}, "bias"),
    ], ids=lambda part: part if isinstance(part, str) else next(iter(part)),
)  # fmt: skip
def test_another_job_is_refused(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    first: dict[str, Any] = {"rules": "epsilon-plus", "bias": "ignore", "target": None}
    list(nrm.heatmaps(network(), DATA, store=tmp_path, progress=False, **first))
    arguments: dict[str, Any] = first | change
    model, data = arguments.pop("model", network()), arguments.pop("data", DATA)
    if arguments["rules"] == "gamma-box":
        arguments["rules"] = nrm.Gamma(0.25)
    with pytest.raises(nrm.NrmError, match=f"another {named}"):
        nrm.heatmaps(model, data, *arguments.pop("question", ()), store=tmp_path, progress=False, **arguments)
    assert len(list(nrm.heatmaps(network(), DATA, store=tmp_path, progress=False, **first))) == 11


def test_maps_against_another_reference_are_another_job(tmp_path: Path) -> None:
    made = list(nrm.heatmaps(network(), DATA, store=tmp_path, against="zeros", progress=False))
    assert torch.allclose(made[3].relevance, alone(3, against="zeros"), atol=1e-6)
    for other in ("blur", DATA.x[:1]):
        with pytest.raises(nrm.NrmError, match="another options"):
            nrm.heatmaps(network(), DATA, store=tmp_path, against=other, progress=False)


def test_one_job_at_a_time(tmp_path: Path) -> None:
    maps = nrm.heatmaps(network(), DATA, store=tmp_path, progress=False)
    next(maps)
    with pytest.raises(nrm.NrmError, match="another job is using"):
        nrm.heatmaps(network(), DATA, store=tmp_path)
    maps.close()
    assert len(list(nrm.heatmaps(network(), DATA, store=tmp_path, progress=False))) == 11
    with pytest.raises(nrm.ResultFileError, match=r"store of heat maps[\s\S]*nrm.heatmaps"):
        nrm.open_store(tmp_path)


def test_a_damaged_map_is_made_again(tmp_path: Path) -> None:
    first = [one.relevance for one in nrm.heatmaps(network(), DATA, store=tmp_path, progress=False)]
    file = tmp_path / "maps" / "00000003.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    maps = nrm.heatmaps(network(), DATA, store=tmp_path, progress=False)
    with pytest.warns(nrm.NrmWarning, match="made again"):
        again = [one.relevance for one in maps]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert file.read_bytes() == whole


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, count = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count > 12:
            raise OSError(28, "No space left on device")
        write(descriptor)

    maps = nrm.heatmaps(network(), DATA, store=tmp_path, progress=False)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(nrm.NrmError, match="No space left"):
        list(maps)
    monkeypatch.undo()
    assert 0 < len(os.listdir(tmp_path / "maps")) < 11
    assert len(list(nrm.heatmaps(network(), DATA, store=tmp_path, progress=False))) == 11


def test_a_shuffled_loader_has_no_order_to_go_on_in(tmp_path: Path) -> None:
    loader = DataLoader(DATA, batch_size=4, shuffle=True)
    assert len(list(nrm.heatmaps(network(), loader, progress=False))) == 11
    with pytest.raises(nrm.QuestionError, match="shuffle=False"):
        nrm.heatmaps(network(), loader, store=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_maps_in_a_folder_have_the_names_of_the_images(tmp_path: Path) -> None:
    data = pictures(tmp_path / "data")
    options: dict[str, Any] = {"transform": as_tensor, "store": tmp_path / "data" / "maps", "progress": False}
    list(nrm.heatmaps(network(), data, **options))
    found = nrm.load(tmp_path / "data" / "maps" / "maps" / "1" / "a.png.safetensors")
    assert found["relevance"].shape == (1, 10, 10)
    assert found.axes["relevance"] == ("input", "input", "input")
    assert found.measure is not None
    assert found.measure["number"] == 1
    assert len(list(nrm.heatmaps(network(), data, **options))) == 3  # the maps are no new images


# ---- what can go wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", [False, True])
def test_bad_samples_stop_the_job_or_are_left_out(store: bool, tmp_path: Path) -> None:
    data = Squares(11, bad=(4,), broken=(7,))
    home = tmp_path if store else None
    with pytest.raises(nrm.NrmError, match="1 sample failed"):
        list(nrm.heatmaps(network(), data, batch_size=3, store=home, progress=False))
    for _ in range(2):
        maps = nrm.heatmaps(network(), data, batch_size=3, store=home, max_errors=2, progress=False)
        assert [one.number for one in maps] == [0, 1, 2, 3, 5, 6, 8, 9, 10]
        assert [number for number, _ in maps.errors] == [4, 7]


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(nrm.QuestionError, match="transform"):
        nrm.heatmaps(network(), tmp_path)
    with pytest.raises(nrm.QuestionError, match="no samples"):
        nrm.heatmaps(network(), [])
    with pytest.raises(nrm.QuestionError, match="not a data set"):
        nrm.heatmaps(network(), 3)
    with pytest.raises(nrm.QuestionError, match="targets and samples"):
        nrm.heatmaps(network(), DATA, target=[1, 2])
    with pytest.raises(nrm.QuestionError, match="batch_size"):
        nrm.heatmaps(network(), DATA, batch_size=0)
    with pytest.raises(nrm.QuestionError, match="max_errors"):
        nrm.heatmaps(network(), DATA, max_errors=-1)
    loader = DataLoader([object()], collate_fn=lambda items: items[0])
    with pytest.raises(nrm.NrmError, match=r"taken apart[\s\S]*nrm.stream"):
        nrm.heatmaps(network(), loader)


def test_what_measures_warn_of_is_told_once_and_kept() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1, bias=False))
    with torch.no_grad():  # the second hidden neuron is active by its bias alone, which is ignored: 5 % in a sink
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
        model[0].bias.copy_(torch.tensor([0.0, 1.0]))
        model[2].weight.copy_(torch.tensor([[0.95, 0.05]]))
    options: dict[str, Any] = {"rules": "lrp-0", "bias": "ignore", "progress": False}
    maps = nrm.heatmaps(model, torch.ones(5, 2), batch_size=2, **options)
    with pytest.warns(nrm.NrmWarning, match=r"batches had a remark") as caught:
        found = list(maps)
    assert len(caught) == 1
    assert all("sinks" in one.notes[0] for one in found)


# ---- pictures --------------------------------------------------------------------------------------------------------


def test_a_map_draws_and_saves_itself(tmp_path: Path) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    one = next(nrm.heatmaps(network(), DATA, bias="input", progress=False))
    ax = one.draw(title="one")
    assert len(ax.images) == 2  # the picture, and the colours over it
    plt.close(ax.figure)
    for name in ("map.png", "map.svg"):
        one.save(tmp_path / name, title="one")
        assert (tmp_path / name).stat().st_size > 5000
    assert not plt.get_fignums()
    one.save(tmp_path / "map.safetensors")
    assert torch.equal(nrm.load(tmp_path / "map.safetensors")["relevance"], one.relevance)
    with pytest.raises(nrm.QuestionError, match="png"):
        one.save(tmp_path / "map.xyz")
    assert not plt.get_fignums()
    assert sorted(os.listdir(tmp_path)) == ["map.png", "map.safetensors", "map.svg"]


def test_samples_of_several_tensors() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 3), nn.Linear(2, 3)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.left(a) + self.right(b)

    a, b = torch.rand(5, 4), torch.rand(5, 2)
    model = Two()
    R = nrm.measure(model, (a, b))
    loader = DataLoader(TensorDataset(a, b), batch_size=2)
    for name in ("input[0]", "input[1]"):
        found = torch.stack([o.relevance for o in nrm.heatmaps(model, loader, nrm.layer(name), progress=False)])
        torch.testing.assert_close(found, R(R[name]), rtol=1e-4, atol=1e-6)


def test_batches_are_no_larger_than_what_is_faster_together() -> None:
    wide = nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 3)
    )
    images = torch.rand(6, 1, 160, 160)
    assert nrm.heatmaps(wide.eval(), images).batch_size == room.WIDE // (64 * 160 * 160)
    held = nrm.measure(wide, images[:1]).inner.tape.nbytes
    sizes = [
        nrm.heatmaps(wide, images[:, :, :20, :20], memory="1 GiB").batch_size,
        nrm.heatmaps(wide, images).batch_size,
    ]
    assert sizes[0] > sizes[1]
    assert held * sizes[1] <= nrm.measure(wide, images[:1]).inner.memory // 8  # nothing is computed twice

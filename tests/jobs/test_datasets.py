"""Any data set is read, whatever is wrong with single samples, and known again."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import nrm
import vision
from jobs.shop import A, Squares, network
from nrm.jobs.datasets import Images
from nrm.jobs.likeness import identify


def gray(picture: Any) -> torch.Tensor:
    return torch.tensor(list(picture.convert("L").resize((10, 10)).tobytes())).view(1, 10, 10) / 255


def png(width: int, height: int) -> bytes:
    """The beginning of an image of any size: black, and without most of its pixels."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"")),
        (b"IEND", b""),
    ]
    body = b"".join(struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + body


def folder(home: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (home / name).mkdir(parents=True)
        for i in range(3):
            pixels = (torch.rand(12, 12, generator=torch.Generator().manual_seed(i)) * 255).byte().numpy()
            image.fromarray(pixels).save(home / name / f"{i}.png")
    return home


def test_a_folder_of_odd_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    home = folder(tmp_path)
    whole = (home / "cat" / "0.png").read_bytes()
    (home / "cat" / "empty.png").write_bytes(b"")
    (home / "cat" / "half.png").write_bytes(whole[: len(whole) // 2])
    (home / "cat" / "huge.png").write_bytes(png(60_000, 60_000))
    (home / "cat" / "large.png").write_bytes(png(11_000, 11_000))
    (home / "cat" / "text.jpg").write_text("no image")
    (home / "cat" / "notes.txt").write_text("not even a name of one")
    image.new("CMYK", (12, 12), (9, 80, 70, 6)).save(home / "dog" / "cmyk.jpg")
    frames = [image.new("P", (12, 12), i) for i in range(3)]
    frames[0].save(home / "dog" / "moving.gif", save_all=True, append_images=frames[1:])
    options = {"transform": gray, "target": "label", "labels": {"output": ["cat", "dog", "eel"]}}
    found = nrm.relmax(network(), home, A.channels, k=13, max_errors=5, batch_size=4, **options)
    bad = [Images(home, gray).files[number] for number, _ in found.errors]
    assert bad == [f"cat/{name}" for name in ("empty.png", "half.png", "huge.png", "large.png", "text.jpg")]
    assert found.count == 8
    with pytest.raises(nrm.NrmError, match="5 samples failed"):
        nrm.relmax(network(), home, A.channels, max_errors=4, **options)


def test_a_folder_of_torchvision(tmp_path: Path) -> None:
    vision.load()
    datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")
    home = folder(tmp_path)
    ours = nrm.relmax(network(), home, A.channels, transform=gray, k=4)
    theirs = nrm.relmax(network(), datasets.ImageFolder(home, transform=gray), A.channels, k=4)
    assert ours.top(A.channel(0)).hits == theirs.top(A.channel(0)).hits


def test_data_sets_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets is not installed")
    data = Squares(12)
    columns = {"input": data.x.tolist(), "label": [i % 3 for i in range(12)]}
    whole = datasets.Dataset.from_dict(columns).with_format("torch")
    expected = nrm.relmax(network(), data, A.channels, k=4, target="label").top(A.channel(0)).hits
    for source in (whole, whole.to_iterable_dataset().with_format("torch")):
        found = nrm.relmax(network(), source, A.channels, k=4, target="label")
        assert found.top(A.channel(0)).hits == expected
    assert identify(whole, None) == identify(datasets.Dataset.from_dict(columns).with_format("torch"), None)
    assert identify(whole, None) != identify(whole.select(range(11)), None)
    columns["label"][5] = 0
    assert identify(whole, None) != identify(datasets.Dataset.from_dict(columns).with_format("torch"), None)


def test_a_change_is_noticed(tmp_path: Path) -> None:
    x = torch.rand(5000, 4, generator=torch.Generator().manual_seed(0))
    changed = x.clone()
    changed[1234, 2] += 1  # not among the samples that are read
    y = torch.zeros(5000, dtype=torch.long)
    for one, other in (
        (x, changed),
        (TensorDataset(x, y), TensorDataset(changed, y)),
        (TensorDataset(x, y), TensorDataset(x, y + (torch.arange(5000) == 77))),
        (ConcatDataset([TensorDataset(x)]), ConcatDataset([TensorDataset(changed)])),
        (Subset(TensorDataset(x), range(1000)), Subset(TensorDataset(x), [*range(500), 501, 500, *range(502, 1000)])),
    ):
        assert identify(one, None) == identify(one, None)
        assert identify(one, None)["content"] != identify(other, None)["content"]
    home = folder(tmp_path / "images")
    before = identify(Images(home, gray), None)
    assert before == identify(Images(home, gray), None)
    (home / "dog" / "2.png").rename(home / "dog" / "3.png")
    assert before["content"] != identify(Images(home, gray), None)["content"]


def test_the_first_samples_of_an_iterable_are_known(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="the extra `store` is not installed")

    def run(seed: int) -> None:
        nrm.relmax(network(), iter(Squares(12, seed=seed)), A.channels, k=4, store=tmp_path / "s")

    run(1)
    run(1)
    with pytest.raises(nrm.NrmError, match="data probes"):
        run(2)

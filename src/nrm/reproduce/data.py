"""The data of the experiments: a folder of yours, a download where there is a network, or what scikit-learn ships."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nrm.errors import NrmError
from nrm.extras import extra

MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


PHOTOS = (".jpg", ".jpeg", ".png")


class MissingDataError(NrmError):
    """Data or weights that an experiment needs are not there."""


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs with their classes."""

    inputs: Tensor
    classes: Tensor


def folder_of(data: Path | None, name: str, needed: str) -> Path:
    """A folder inside the user's data folder."""
    found = None if data is None else data / name
    if found is None or not found.exists():
        raise MissingDataError(
            f"no {needed}", where=str(data) if data else "no data folder was given",
            got=f"no {name!r} in it" if data else None, expected=f"a folder with {name!r}", hint="--data PATH",
        )  # fmt: skip
    return found


def mnist(data: Path | None) -> tuple[Split, Split]:
    """MNIST for training and for testing, from the four files or by torchvision; pixels are shifted and scaled."""
    home = None if data is None else next((p for p in (data / "mnist", data / "MNIST" / "raw") if p.exists()), None)
    if home is None:
        home = _download_mnist(data or Path("data"))
    return _idx(home, "train"), _idx(home, "t10k")


def _download_mnist(target: Path) -> Path:
    try:
        with extra("vision", "nrm reproduce mlp"):
            from torchvision.datasets import MNIST
        MNIST(str(target), download=True)
    except (NrmError, OSError, RuntimeError) as error:
        raise MissingDataError(
            "no MNIST", where=str(target), got=str(error).splitlines()[0][:160],
            expected="a folder 'mnist' with the four idx files, or a network to download them",
            hint="--data PATH, or --embedded for the small digits of scikit-learn",
        ) from error  # fmt: skip
    return target / "MNIST" / "raw"


def _idx(home: Path, part: str) -> Split:
    arrays = []
    for kind in ("images-idx3", "labels-idx1"):
        path = next((p for p in (home / f"{part}-{kind}-ubyte", home / f"{part}-{kind}-ubyte.gz") if p.exists()), None)
        if path is None:
            raise MissingDataError("no MNIST", where=str(home), expected=f"{part}-{kind}-ubyte or the same with .gz")
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        ranks = raw[3]
        shape = np.frombuffer(raw, ">i4", ranks, 4)
        arrays.append(torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * ranks).reshape(shape).copy()))
    return Split((arrays[0].flatten(1).float() / 255 - 0.1307) / 0.3081, arrays[1].long())


def digits() -> tuple[Split, Split]:
    """The digits of scikit-learn, 8 x 8: 1,297 for training and 500 for testing."""
    with extra("cluster", "nrm reproduce --embedded"):
        from sklearn.datasets import load_digits
    pixels, classes = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pixels).float() / 16, torch.from_numpy(classes).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return Split(x[500:], y[500:]), Split(x[:500], y[:500])


def photo(path: Path) -> Tensor:
    """An image file as a normalized input: short side 256, centre crop 224. One that has 224 x 224 already stays."""
    with extra("viz", "nrm reproduce"):
        from PIL import Image
    image = Image.open(path).convert("RGB")
    if image.size != (224, 224):
        scale = 256 / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
    left, top = (image.width - 224) // 2, (image.height - 224) // 2
    pixels = torch.from_numpy(np.array(image.crop((left, top, left + 224, top + 224)))).float() / 255
    return ((pixels - MEAN) / DEVIATION).permute(2, 0, 1)


def shown(x: Tensor) -> Tensor:
    """A normalized photo as a picture with values between 0 and 1."""
    return (x * DEVIATION.view(3, 1, 1) + MEAN.view(3, 1, 1)).clamp(0, 1)


def mixed(files: Sequence[tuple[Path, int]]) -> list[tuple[Path, int]]:
    """Files in an order in which every beginning has all classes; the same every time."""
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
    seen: dict[int, int] = {}
    ranked: list[tuple[int, int, tuple[Path, int]]] = []
    for i in order:
        label = files[i][1]
        seen[label] = seen.get(label, -1) + 1
        ranked.append((seen[label], len(ranked), files[i]))
    return [one for _, _, one in sorted(ranked, key=lambda r: r[:2])]


def labelled_files(home: Path) -> list[tuple[Path, int]]:
    """The images of a folder with one folder per class; classes are numbered in the order of their names."""
    folders = sorted(p for p in home.iterdir() if p.is_dir())
    return [(f, n) for n, p in enumerate(folders) for f in sorted(p.iterdir()) if f.suffix.lower() in PHOTOS]


def imagenet_files(home: Path) -> list[tuple[Path, int]]:
    """ImageNet's images: in a folder for each of the 1000 classes (below ``val``, if there is one), or files that begin
    with the number of their class, ``0000_n01440764_tench.jpg``.
    """
    home = home / "val" if (home / "val").is_dir() else home
    numbered = [(f, int(f.name.partition("_")[0])) for f in sorted(home.glob("[0-9]*_*")) if f.suffix.lower() in PHOTOS]
    found = numbered or labelled_files(home)
    folders = len({label for _, label in found})
    if not numbered and folders != 1000:
        raise MissingDataError(
            "no ImageNet images", where=str(home), got=f"{folders} folders with images",
            expected="a folder for each of the 1000 classes, or files NUMBER_name.jpg",
        )  # fmt: skip
    return found


def sequences(count: int, seed: int, steps: int = 100, event: int = 80) -> Split:
    """The toy sequences: state 0 at every step but one, where state 1 or 2 decides the class."""
    random = torch.Generator().manual_seed(seed)
    classes = torch.randint(2, (count,), generator=random)
    x = torch.zeros(count, steps, 3)
    x[:, :, 0] = 1.0
    x[:, event, 0] = 0.0
    x[torch.arange(count), event, 1 + classes] = 1.0
    return Split(x, classes)

"""Images have one reader: commands, the explorer and jobs read the same files, in the same way, within one limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Image = pytest.importorskip("PIL.Image")

from nrm.cli.inputs import read_inputs  # noqa: E402
from nrm.cli.models import LoadedModel  # noqa: E402
from nrm.cli.transforms import plain  # noqa: E402
from nrm.errors import NrmError  # noqa: E402
from nrm.explorer.items import Items  # noqa: E402
from nrm.files import SUFFIXES, read_image  # noqa: E402
from nrm.jobs import Images  # noqa: E402

PLAIN = plain(torch.nn.Identity())


def by_command(folder: Path) -> torch.Tensor:
    return read_inputs(LoadedModel("m", torch.nn.Identity(), transform=PLAIN), [str(folder)])[0].load().inputs[0]


def by_explorer(folder: Path) -> torch.Tensor:
    return Items(folder)["0"].load().inputs[0]


def by_job(folder: Path) -> torch.Tensor:
    return Images(folder, PLAIN.of)[0]


READERS = pytest.mark.parametrize("read", [by_command, by_explorer, by_job])


def turned() -> Any:
    """A picture of 4 x 6 whose camera was held on its side: it is 6 x 4, its dark end on the left."""
    image = Image.new("RGB", (4, 6), (250, 0, 0))
    image.paste((0, 0, 250), (0, 0, 4, 3))
    return image


@READERS
def test_images_are_upright(tmp_path: Path, read: Callable[[Path], torch.Tensor]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned().save(tmp_path / "a.png", exif=exif)
    found = read(tmp_path)
    assert found.shape == (3, 4, 6)
    assert (found[2, :, 3:] > 0.9).all()


@READERS
@pytest.mark.parametrize("suffix", sorted(set(SUFFIXES) - {".jpg", ".jpeg", ".pgm", ".tif"}))
def test_images_of_every_format_are_read(tmp_path: Path, read: Callable[[Path], torch.Tensor], suffix: str) -> None:
    turned().save(tmp_path / f"a{suffix}", **({"lossless": True} if suffix == ".webp" else {}))
    assert torch.equal(read(tmp_path), PLAIN.of(turned()))


@READERS
@pytest.mark.parametrize(("limit", "text"), [("MOST_PIXELS", "too many pixels"), ("MOST_BYTES", "too large")])
def test_the_limits_are_those_of_all(
    tmp_path: Path, read: Callable[[Path], torch.Tensor], limit: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turned().save(tmp_path / "a.png")
    monkeypatch.setattr(f"nrm.files.images.{limit}", 20)
    with pytest.raises(NrmError, match=text):
        read(tmp_path)


def test_an_animation_is_its_first_picture(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (3, 3), (n, n, n)) for n in (0, 255)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert read_image(tmp_path / "a.gif").getpixel((1, 1)) == (0, 0, 0)

"""Images, read the same way and within the same limits wherever they come from."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from nrm.errors import NrmError, QuestionError
from nrm.extras import extra

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
"""The endings of files that are images."""

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")

MOST_BYTES, MOST_PIXELS = 2**28, 10**8
"""The largest file that is read, and the largest picture in it that is decoded: a bomb is told by its header."""


def read_image(source: bytes | Path, formats: tuple[str, ...] = FORMATS) -> Any:
    """An RGB picture of PIL, upright, of a file or its bytes; nothing is decoded before its size is known.

    Of an animation it is the first picture.
    """
    with extra("viz", "images"):
        from PIL import Image, ImageOps
    try:
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if size > MOST_BYTES:
            raise QuestionError(
                "the image is too large", got=f"{size >> 20} MiB", expected=f"at most {MOST_BYTES >> 20} MiB"
            )
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=formats) as image:
            if image.width * image.height > MOST_PIXELS:
                raise QuestionError(
                    "the image has too many pixels", got=f"{image.width} x {image.height}",
                    expected=f"at most {MOST_PIXELS:,}",
                )  # fmt: skip
            return ImageOps.exif_transpose(image).convert("RGB")
    except NrmError:
        raise
    except Exception as error:  # a broken file can fail in any way
        raise QuestionError(
            "the image cannot be read", got=type(error).__name__, expected=f"a picture in {', '.join(formats)}"
        ) from error

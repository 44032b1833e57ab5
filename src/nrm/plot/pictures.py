"""Read what a user hands over (tensors, arrays, PIL images) as numbers that can be drawn, or say why not."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from nrm.errors import QuestionError

Array: TypeAlias = npt.NDArray[np.float64]
Picture: TypeAlias = torch.Tensor | npt.ArrayLike
"""A tensor on any device, an array, nested lists, or anything numpy can read, such as a PIL image."""

Scalar: TypeAlias = torch.Tensor | npt.ArrayLike
"""A number, or a tensor or array with a single element."""

# Rec. 709 weights of red, green and blue in the perceived brightness.
LUMA = np.array([0.2126, 0.7152, 0.0722])


def read_relevance(relevance: Picture) -> Array:
    """``(H, W)`` from ``(H, W)``, ``(C, H, W)`` or ``(1, C, H, W)``; channels are summed.

    >>> read_relevance(torch.ones(1, 3, 2, 2)).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    values = read_numbers(relevance, "relevance")
    shape = values.shape
    if values.ndim == 4 and len(values) == 1:
        values = values[0]
    if values.ndim == 4:
        raise QuestionError(
            "a heat map shows one sample",
            got=f"a batch of {len(values)}, shape {shape}",
            expected="(H, W), (C, H, W) or (1, C, H, W)",
            hint="relevance[i] for one sample, nrm.plot.montage for several",
        )
    if values.ndim not in (2, 3) or (values.ndim == 2 and len(values) == 1 < values.size):
        flat = values.ndim <= 2
        raise QuestionError(
            "relevance is not a picture",
            got=f"{'a flat tensor' if flat else f'{values.ndim} axes'}, shape {shape}",
            expected="(H, W), (C, H, W) or (1, C, H, W)",
            hint="relevance.reshape(height, width)" if flat else "sum or index the other axes",
        )
    if values.size == 0:
        raise QuestionError("relevance is empty", got=f"shape {shape}", expected="at least one pixel")
    refuse_nonfinite(values, "relevance")
    if values.ndim == 3:
        with np.errstate(over="ignore"):
            values = values.sum(axis=0)
        refuse_nonfinite(values, "relevance summed over channels")
    return values


def read_line(
    relevance: Picture, of: str = "tokens", hint: str = "R(R.input.positions)", *, empty: bool = False
) -> Array:
    """``(T,)`` from ``(T,)`` or ``(1, T)``: one number for each of the tokens, nodes, edges.

    >>> read_line(torch.ones(1, 3)).tolist()
    [1.0, 1.0, 1.0]
    """
    values = read_numbers(relevance, "relevance")
    shape = values.shape
    if values.ndim == 2 and len(values) == 1:
        values = values[0]
    if values.ndim != 1 or (values.size == 0 and not empty):
        raise QuestionError(
            f"relevance is not a line of {of}", got=f"shape {shape}", expected="(T,) or (1, T)",
            hint="relevance[i] for one sample" if values.ndim == 2 and values.size > 0 else hint,
        )  # fmt: skip
    refuse_nonfinite(values, "relevance")
    return values


def read_image(image: Picture) -> Array:
    """``(H, W, 3)`` or ``(H, W, 1)`` in [0, 1] from any usual layout and range.

    Floats in [0, 1] are taken as they are and uint8 is divided by 255; any other range (standardized images) is
    stretched from its minimum to its maximum.

    >>> read_image(torch.tensor([[[-2.0, 0.0, 2.0]]])).tolist()
    [[[0.0], [0.5], [1.0]]]
    """
    if hasattr(image, "convert"):
        image = np.asarray(image.convert("RGB"))
    values = read_numbers(image, "the image")
    shape = values.shape
    if values.ndim == 4 and len(values) == 1:
        values = values[0]
    if values.ndim == 2:
        values = values[:, :, None]
    elif values.ndim == 3 and values.shape[0] in (1, 3):
        values = np.moveaxis(values, 0, -1)
    if values.ndim != 3 or values.shape[-1] not in (1, 3) or values.size == 0:
        raise QuestionError(
            "the image is not a grey or RGB picture",
            got=f"shape {shape}",
            expected="(3, H, W), (1, H, W), (H, W), (H, W, 3) or a batch of one",
            hint="image[i] for one sample, image.convert('RGB') for other colour modes",
        )
    refuse_nonfinite(values, "the image")
    if getattr(image, "dtype", None) in (torch.uint8, np.uint8):
        return values / 255.0
    low, high = float(values.min()), float(values.max())
    if low >= 0.0 and high <= 1.0:
        return values
    return (values - low) / (high - low) if high > low else np.full_like(values, 0.5)


def to_grey(image: Array) -> Array:
    """Brightness ``(H, W)`` of an image from :func:`read_image`."""
    return image @ LUMA if image.shape[-1] == 3 else image[:, :, 0]


def read_scalar(number: Scalar, name: str) -> float:
    """A finite number from a number or a tensor with one element."""
    values = read_numbers(number, name)
    if values.size != 1:
        raise QuestionError(
            f"{name} is one number",
            got=f"shape {values.shape}",
            expected="a number, or a tensor with one element",
            hint=f"{name}[i] for one sample",
        )
    refuse_nonfinite(values, name)
    return float(values.reshape(()))


def read_finite(values: Picture, name: str) -> Array:
    """Any number of finite numbers, at least one."""
    array = read_numbers(values, name)
    if array.size == 0:
        raise QuestionError(f"{name} is empty", got=f"shape {array.shape}", expected="at least one number")
    refuse_nonfinite(array, name)
    return array


def check_fit(relevance: Array, image: Array) -> None:
    """Refuse relevance that is neither as large as the image nor a coarser view of all of it.

    A coarser map has ``h = H / s`` rows and ``w = W / s`` columns for one stride ``s > 1``, both rounded up or down.
    """
    (h, w), (height, width) = relevance.shape, image.shape[:2]
    strides = [(full / (n + 1), full / (n - 1) if n > 1 else float("inf")) for n, full in ((h, height), (w, width))]
    overlap = max(low for low, _ in strides) < min(high for _, high in strides)
    if (h, w) != (height, width) and not (h < height and w < width and overlap):
        raise QuestionError(
            "relevance and image do not fit",
            got=f"relevance {h} x {w}, image {height} x {width}",
            expected="the same height and width, or a coarser map with the aspect ratio of the image",
            hint="pass the image that was explained; channels come first: (C, H, W)",
        )


def read_numbers(values: Picture, name: str) -> Array:
    """Real numbers in double precision, whatever holds them."""
    expected = "a tensor or an array of real numbers"
    if isinstance(values, torch.Tensor):
        if values.is_meta or values.layout != torch.strided or values.is_complex() or values.is_quantized:
            kind = f"a tensor with {values.dtype}, {values.layout}, device {values.device}"
            raise QuestionError(f"{name} cannot be drawn", got=kind, expected=f"{expected}, dense and with data")
        return values.detach().cpu().to(torch.float64).numpy()
    try:
        array = np.asarray(values)
        real = array.dtype.kind in "biuf"
    except (TypeError, ValueError):
        real = False
    if not real:
        raise QuestionError(f"{name} cannot be drawn", got=type(values).__name__, expected=expected)
    return array.astype(np.float64)


def refuse_nonfinite(values: Array, name: str) -> None:
    """Refuse NaN and infinity."""
    bad = values.size - int(np.isfinite(values).sum())
    if bad:
        raise QuestionError(
            f"{name} has values that are not finite",
            got=f"{bad} of {values.size} values are NaN or infinite",
            expected="finite numbers",
        )

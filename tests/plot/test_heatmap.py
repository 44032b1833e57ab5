"""Heat maps: what is drawn is the relevance, the colours mean what they say, and bad input has a clear text."""

from __future__ import annotations

import builtins
import io
import sys
from collections.abc import Callable
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from PIL import Image

from nrm.errors import QuestionError
from nrm.extras import MissingExtraError, extra
from nrm.plot import diverging, heatmap, montage
from nrm.plot.pictures import check_fit, read_image, read_relevance, to_grey


def render(figure: Figure) -> np.ndarray:
    figure.canvas.draw()
    with io.BytesIO() as file:
        figure.savefig(file, format="png", dpi=50)
        return np.asarray(Image.open(file).convert("RGB"))


def heat_of(ax: Axes) -> AxesImage:
    return ax.images[-1]


def shown(ax: Axes) -> np.ndarray:
    return np.asarray(heat_of(ax).get_array(), dtype=np.float64)


def bar_of(ax: Axes) -> Any:
    bar = heat_of(ax).colorbar
    assert bar is not None
    return bar


RELEVANCE = torch.linspace(-0.5, 1.0, 48).reshape(6, 8)


# What is drawn


@given(
    hnp.arrays(
        np.float64, hnp.array_shapes(min_dims=2, max_dims=3, min_side=2, max_side=6), elements=st.floats(-1e30, 1e30)
    )
)
def test_the_picture_holds_the_relevance_summed_over_channels_on_a_symmetric_scale(values: np.ndarray) -> None:
    ax = heatmap(torch.from_numpy(values), colorbar=False)
    total = values.sum(axis=0) if values.ndim == 3 else values
    np.testing.assert_array_equal(shown(ax), total)
    low, high = heat_of(ax).get_clim()
    assert low == -high
    assert high == (np.abs(total).max() or 1.0)
    plt.close(ax.figure)


@pytest.mark.parametrize(
    "relevance",
    [
        RELEVANCE,
        RELEVANCE[None],
        RELEVANCE[None, None],
        RELEVANCE.double().numpy(),
        RELEVANCE.tolist(),
        RELEVANCE.clone().requires_grad_(),
        torch.stack([RELEVANCE / 4, RELEVANCE / 2, RELEVANCE / 4])[None],
    ],
    ids=["HW", "CHW", "1CHW", "array", "lists", "grad", "colours"],
)
def test_every_usual_layout_gives_the_same_picture(relevance: Any) -> None:
    np.testing.assert_allclose(shown(heatmap(relevance)), RELEVANCE.numpy(), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool])
def test_every_real_dtype_is_drawn(dtype: torch.dtype, device: torch.device) -> None:
    relevance = (RELEVANCE * 4).to(device, dtype)
    np.testing.assert_array_equal(shown(heatmap(relevance)), relevance.double().cpu().numpy())


def test_relevance_under_inference_mode_is_drawn() -> None:
    with torch.inference_mode():
        relevance = RELEVANCE * 2
        ax = heatmap(relevance, image=torch.rand(3, 6, 8))
    np.testing.assert_allclose(shown(ax), 2 * RELEVANCE.numpy(), rtol=1e-6)


def test_the_inputs_are_left_alone_and_later_changes_do_not_reach_the_picture() -> None:
    relevance, image = RELEVANCE.double(), torch.rand(3, 6, 8, dtype=torch.float64) * 5
    before = relevance.clone(), image.clone()
    ax = heatmap(relevance, image, scale="90%")
    render(ax.figure)
    assert torch.equal(relevance, before[0])
    assert torch.equal(image, before[1])
    relevance.zero_()
    np.testing.assert_array_equal(shown(ax), before[0].numpy())


def test_the_given_axes_are_used_and_returned() -> None:
    figure, axes = plt.subplots(1, 2, layout="constrained")
    assert heatmap(RELEVANCE, ax=axes[1]) is axes[1]
    assert not axes[0].images
    assert plt.get_fignums() == [figure.number]
    render(figure)


def test_a_new_figure_has_the_shape_of_the_picture() -> None:
    wide = heatmap(torch.rand(10, 40), colorbar=False).figure.get_size_inches()
    tall = heatmap(torch.rand(40, 10), colorbar=False).figure.get_size_inches()
    assert wide[0] > wide[1]
    assert tall[1] > tall[0]


def test_global_settings_stay_as_they_were() -> None:
    before = dict(mpl.rcParams)
    maps = set(mpl.colormaps)
    render(heatmap(RELEVANCE, title="t").figure)
    assert dict(mpl.rcParams) == before
    assert set(mpl.colormaps) == maps


# Colours


def lightness(colour: np.ndarray) -> float:
    """OKLab lightness of an sRGB colour, from its definition."""
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    to_lms = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    return float(np.cbrt(to_lms @ linear) @ np.array([0.2104542553, 0.7936177850, -0.0040720468]))


def test_zero_is_exactly_white_and_both_signs_are_equally_loud() -> None:
    cmap = diverging()
    assert cmap(0.5) == (1.0, 1.0, 1.0, 1.0)
    distance = np.linspace(0, 1, 101)
    above = np.array([lightness(np.array(cmap(0.5 + d / 2)[:3])) for d in distance])
    below = np.array([lightness(np.array(cmap(0.5 - d / 2)[:3])) for d in distance])
    np.testing.assert_allclose(above, below, atol=0.01)
    np.testing.assert_allclose(above, 1 - 0.55 * distance, atol=0.012)
    assert (np.diff(above) < 0).all()
    assert (np.diff(below) < 0).all()


def test_positive_is_red_negative_blue_zero_white_in_the_rendered_picture() -> None:
    figure = plt.figure(figsize=(3, 1))
    ax = figure.add_axes((0, 0, 1, 1))
    heatmap(torch.tensor([[-1.0, 0.0, 1.0]] * 2), ax=ax, colorbar=False)
    ax.set_aspect("auto")
    pixels = render(figure)[25]
    blue, white, red = pixels[25].astype(int), pixels[75].astype(int), pixels[125].astype(int)
    assert blue[2] > blue[0] + 50
    assert white.tolist() == [255, 255, 255]
    assert red[0] > red[2] + 50


def test_the_colours_are_blended_over_the_grey_image() -> None:
    figure = plt.figure(figsize=(2, 1))
    ax = figure.add_axes((0, 0, 1, 1))
    image = torch.zeros(3, 2, 4)
    image[:, :, 2:] = 1.0
    heatmap(torch.tensor([[0.0, 1.0, 0.0, 1.0]] * 2), image, ax=ax, alpha=0.5, colorbar=False)
    ax.set_aspect("auto")
    row = render(figure)[25]
    full = 255 * np.array(to_rgb("#a10b1b"))
    np.testing.assert_allclose(row[12], [127.5] * 3, atol=1.5)  # nothing over black
    np.testing.assert_allclose(row[37], full / 2, atol=1.5)  # all over black
    np.testing.assert_allclose(row[62], [255] * 3, atol=1.5)  # nothing over white
    np.testing.assert_allclose(row[87], full / 2 + 127.5, atol=1.5)  # all over white


def test_a_colour_map_can_be_chosen_by_name_or_value() -> None:
    assert heat_of(heatmap(RELEVANCE, cmap="PuOr")).get_cmap().name == "PuOr"
    assert heat_of(heatmap(RELEVANCE, cmap=mpl.colormaps["bwr"])).get_cmap().name == "bwr"


# Scale


def test_a_number_fixes_the_scale_and_the_bar_shows_what_is_clipped() -> None:
    ax = heatmap(RELEVANCE, scale=0.75)
    assert heat_of(ax).get_clim() == (-0.75, 0.75)
    assert bar_of(ax).extend == "max"
    assert bar_of(heatmap(RELEVANCE, scale=torch.tensor(0.25))).extend == "both"
    assert bar_of(heatmap(-RELEVANCE, scale=0.75)).extend == "min"
    assert bar_of(heatmap(RELEVANCE)).extend == "neither"


def test_a_percentile_ignores_a_few_extreme_pixels_and_zeros() -> None:
    relevance = torch.zeros(20, 20)
    relevance[:10] = torch.linspace(-1, 1, 200).reshape(10, 20)
    relevance[0, 0] = 1000.0
    _, high = heat_of(heatmap(relevance, scale="99%")).get_clim()
    assert 0.9 < high < 1.01
    assert heat_of(heatmap(torch.zeros(4, 4), scale="99%")).get_clim() == (-1.0, 1.0)


@pytest.mark.parametrize("magnitude", [1e-300, 1e-38, 1e-12, 1.0, 1e12, 1e38])
def test_relevance_of_any_magnitude_renders(magnitude: float) -> None:
    ax = heatmap(RELEVANCE.double() * magnitude, image=torch.rand(12, 16), value=-magnitude)
    assert render(ax.figure).std() > 1


def test_the_bar_names_its_ends_and_unit() -> None:
    bar = bar_of(heatmap(RELEVANCE * 1e-5))
    assert [text.get_text() for text in bar.ax.get_yticklabels()] == ["−1·10⁻⁵", "0", "+1·10⁻⁵"]
    assert bar.ax.get_ylabel() == "share of the output"
    assert (bar.ax.get_xlabel(), bar.ax.get_title(loc="left")) == ("against", "for")
    bar = bar_of(heatmap(RELEVANCE, labels=("less", "more")))
    assert (bar.ax.get_xlabel(), bar.ax.get_title(loc="left")) == ("less", "more")
    assert heat_of(heatmap(RELEVANCE, colorbar=False)).colorbar is None


# Notes


def test_a_negative_output_is_said_below_and_at_the_bar() -> None:
    ax = heatmap(RELEVANCE, value=torch.tensor([-3.25]))
    assert ax.get_xlabel() == "shares of a negative output (−3.2)"
    assert bar_of(ax).ax.get_ylabel() == "share of a negative output"


@pytest.mark.parametrize("value", [None, 0.0, 2.0, torch.tensor([2.0])])
def test_other_outputs_need_no_note(value: Any) -> None:
    ax = heatmap(RELEVANCE, value=value)
    assert ax.get_xlabel() == ""
    assert bar_of(ax).ax.get_ylabel() == "share of the output"


@pytest.mark.parametrize(
    ("rest", "note"),
    [
        (0.083, "8.3 % of the mass not shown"),
        (torch.tensor([-0.5]), "−50.0 % of the mass not shown: against the output"),
        (1e-5, ""),
        (0.0, ""),
    ],
)
def test_mass_outside_the_picture_is_noted(rest: Any, note: str) -> None:
    assert heatmap(RELEVANCE, rest=rest).get_xlabel() == note


def test_a_map_of_zeros_is_white_and_says_so() -> None:
    ax = heatmap(torch.zeros(3, 4, 4))
    assert ax.get_xlabel() == "no relevance here: all zero"
    assert heat_of(ax).get_clim() == (-1.0, 1.0)


def test_notes_are_no_wider_than_a_small_picture() -> None:
    _, axes = plt.subplots(1, 4, figsize=(8, 2), layout="constrained")
    text = heatmap(RELEVANCE, ax=axes[0], value=-1.0, rest=0.1, colorbar=False).get_xlabel()
    assert max(map(len, text.splitlines())) < 30
    assert text.replace("\n", " ") == "shares of a negative output (−1) 10.0 % of the mass not shown"


def test_user_text_is_never_read_as_mathematics() -> None:
    hostile = r"$\frac{1}{$ _^ </script> 100 % \n"
    ax = heatmap(RELEVANCE, title=hostile, labels=("$_", "$^"))
    assert ax.get_title() == hostile
    render(ax.figure)
    row = (torch.rand(3, 6, 8), RELEVANCE)
    render(montage([row], names=[hostile], columns=[hostile, hostile], title=hostile, labels=("$_", "$^")))


# Images


@pytest.mark.parametrize(
    "arrange",
    [
        lambda image: image,
        lambda image: image[None],
        lambda image: image.permute(1, 2, 0),
        lambda image: image.numpy(),
        lambda image: (image * 255).round().to(torch.uint8),
        lambda image: (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy(),
        lambda image: Image.fromarray((image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()),
        lambda image: Image.fromarray((image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()).convert("RGBA"),
        lambda image: image.half(),
    ],
    ids=["3HW", "13HW", "HW3", "array", "uint8", "HW3 uint8", "PIL", "PIL RGBA", "half"],
)
def test_every_usual_image_is_drawn_with_the_same_brightness(arrange: Callable[[torch.Tensor], Any]) -> None:
    image = torch.rand(3, 6, 8, generator=torch.Generator().manual_seed(0))
    luma = (image * torch.tensor([0.2126, 0.7152, 0.0722]).view(3, 1, 1)).sum(0)
    ax = heatmap(RELEVANCE, arrange(image))
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), luma.numpy(), atol=0.004)


@pytest.mark.parametrize("shape", [(6, 8), (1, 6, 8), (6, 8, 1), (1, 1, 6, 8)])
def test_grey_images_are_drawn(shape: tuple[int, ...]) -> None:
    image = torch.rand(6, 8)
    ax = heatmap(RELEVANCE, image.reshape(shape))
    np.testing.assert_allclose(np.asarray(ax.images[0].get_array()), image.numpy())


@given(
    hnp.arrays(np.float64, st.sampled_from([(3, 4, 5), (1, 4, 5), (4, 5), (4, 5, 3)]), elements=st.floats(-1e6, 1e6))
)
def test_any_float_range_becomes_zero_to_one_in_the_same_order(image: np.ndarray) -> None:
    read = read_image(image)
    grey = to_grey(read)
    assert grey.shape == (4, 5)
    assert read.min() >= 0.0
    assert read.max() <= 1.0
    flat, order = np.sort(image.ravel()), np.argsort(image.ravel(), kind="stable")
    arranged = np.moveaxis(read, -1, 0) if image.shape == (3, 4, 5) else read
    if flat[0] < flat[-1]:
        assert (np.diff(arranged.ravel()[order]) >= 0).all()


def test_images_in_range_are_not_stretched() -> None:
    assert read_image(torch.full((2, 2), 0.25)).max() == 0.25
    assert read_image(torch.full((2, 2), 64, dtype=torch.uint8)).max() == 64 / 255
    assert read_image(torch.full((2, 2), 7.0)).max() == 0.5


# Coarser maps


@pytest.mark.parametrize("size", [(7, 7), (14, 14), (1, 1), (224, 224), (112, 112)])
def test_a_coarser_map_covers_the_whole_image(size: tuple[int, int]) -> None:
    ax = heatmap(torch.rand(1, *size), torch.rand(3, 224, 224))
    image, heat = ax.images
    assert tuple(heat.get_extent()) == tuple(image.get_extent())
    assert shown(ax).shape == size


def test_a_coarser_map_is_smooth_or_shows_its_cells() -> None:
    image = torch.rand(3, 32, 32)
    assert heat_of(heatmap(torch.rand(4, 4), image)).get_interpolation() == "bilinear"
    assert heat_of(heatmap(torch.rand(4, 4), image, smooth=False)).get_interpolation() == "nearest"


@pytest.mark.parametrize(("stride", "round_"), [(32, np.floor), (32, np.ceil), (16, np.floor), (7, np.ceil)])
@pytest.mark.parametrize("image", [(224, 224), (300, 224), (375, 500), (427, 640)])
def test_maps_of_any_stride_fit(image: tuple[int, int], stride: int, round_: Callable[[float], float]) -> None:
    height, width = (int(round_(n / stride)) for n in image)
    check_fit(np.ones((height, width)), np.ones(image))


@pytest.mark.parametrize("size", [(8, 6), (12, 16), (3, 8), (6, 7), (2, 7)])
def test_maps_of_another_shape_do_not_fit(size: tuple[int, int]) -> None:
    with pytest.raises(QuestionError, match="do not fit") as caught:
        heatmap(torch.rand(*size), torch.rand(3, 6, 8))
    assert f"relevance {size[0]} x {size[1]}, image 6 x 8" in str(caught.value)


# Bad input


def nan_at(*shape: int) -> torch.Tensor:
    values = torch.rand(*shape)
    values.view(-1)[1] = float("nan")
    return values


BAD = {
    "flat": ({"relevance": torch.rand(10)}, "not a picture", "shape (10,)"),
    "flat batch": ({"relevance": torch.rand(1, 784)}, "not a picture", "reshape"),
    "scalar": ({"relevance": torch.tensor(1.0)}, "not a picture", "shape ()"),
    "batch": ({"relevance": torch.rand(2, 3, 4, 4)}, "one sample", "a batch of 2"),
    "five axes": ({"relevance": torch.rand(1, 2, 3, 4, 4)}, "not a picture", "5 axes"),
    "empty": ({"relevance": torch.rand(3, 0, 4)}, "empty", "(3, 0, 4)"),
    "nan": ({"relevance": nan_at(4, 4)}, "not finite", "1 of 16"),
    "inf": ({"relevance": torch.full((4, 4), float("inf"))}, "not finite", "16 of 16"),
    "overflow": ({"relevance": np.full((2, 4, 4), 1.7e308)}, "summed over channels", "16 of 16"),
    "text": ({"relevance": "heat"}, "cannot be drawn", "str"),
    "ragged": ({"relevance": [[1.0], [1.0, 2.0]]}, "cannot be drawn", "list"),
    "complex": ({"relevance": torch.ones(4, 4, dtype=torch.complex64)}, "cannot be drawn", "complex64"),
    "sparse": ({"relevance": torch.ones(4, 4).to_sparse()}, "cannot be drawn", "sparse"),
    "meta": ({"relevance": torch.ones(4, 4, device="meta")}, "cannot be drawn", "meta"),
    "image axes": ({"image": torch.rand(5, 6, 8)}, "not a grey or RGB picture", "(5, 6, 8)"),
    "image batch": ({"image": torch.rand(2, 3, 6, 8)}, "not a grey or RGB picture", "(2, 3, 6, 8)"),
    "image nan": ({"image": nan_at(3, 6, 8)}, "the image has values that are not finite", "1 of 144"),
    "image text": ({"image": "cat.png"}, "the image cannot be drawn", "str"),
    "alpha": ({"alpha": 1.5}, "alpha", "1.5"),
    "alpha nan": ({"alpha": float("nan")}, "alpha", "nan"),
    "scale zero": ({"scale": 0.0}, "scale is not positive", "0.0"),
    "scale nan": ({"scale": float("nan")}, "scale has values", "NaN"),
    "scale text": ({"scale": "robust"}, "percentile", "'robust'"),
    "scale percent": ({"scale": "101%"}, "percentile", "'101%'"),
    "cmap": ({"cmap": "no-such-map"}, "unknown colour map", "'no-such-map'"),
    "value batch": ({"value": torch.rand(3)}, "value is one number", "(3,)"),
    "value nan": ({"value": float("nan")}, "value has values", "NaN"),
    "rest text": ({"rest": "much"}, "rest cannot be drawn", "str"),
    "ax": ({"ax": np.array([1, 2])}, "ax is not one matplotlib axes", "ndarray"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_has_a_clear_text_and_leaves_no_figure(case: str) -> None:
    arguments, what, got = BAD[case]
    with pytest.raises(QuestionError, match=what) as caught:
        heatmap(**{"relevance": RELEVANCE, **arguments})
    assert got in str(caught.value)
    assert caught.value.where == "nrm.plot.heatmap"
    assert plt.get_fignums() == []


# Montage


def rows_of(count: int, maps: int = 2) -> list[tuple[torch.Tensor, ...]]:
    make = torch.Generator().manual_seed(count)
    return [
        (torch.rand(3, 12, 16, generator=make), *(torch.randn(3, 12, 16, generator=make) for _ in range(maps)))
        for _ in range(count)
    ]


def test_a_montage_has_the_image_and_its_maps_in_every_row() -> None:
    rows = rows_of(3)
    figure = montage(rows, names=["a", "b", "c"], columns=["image", "one", "two"], title="all")
    grid = np.array(figure.axes[:9]).reshape(3, 3)
    for (image, *maps), axes in zip(rows, grid, strict=True):
        np.testing.assert_allclose(np.asarray(axes[0].images[0].get_array()), image.permute(1, 2, 0).numpy())
        for relevance, ax in zip(maps, axes[1:], strict=True):
            np.testing.assert_allclose(shown(ax), relevance.double().sum(0).numpy())
            assert len(ax.images) == 2
    assert [ax.get_title() for ax in grid[0]] == ["image", "one", "two"]
    assert [ax.get_ylabel() for ax in grid[:, 0]] == ["a", "b", "c"]
    assert figure.axes[9].get_ylabel() == "each map on its own scale"
    render(figure)


def test_a_montage_without_overlay_draws_on_white_and_still_spreads_coarse_maps() -> None:
    figure = montage([(torch.rand(1, 12, 16), torch.rand(3, 4), torch.rand(12, 16))], overlay=False, colorbar=False)
    assert len(figure.axes) == 3
    coarse, fine = figure.axes[1:]
    assert [len(ax.images) for ax in (coarse, fine)] == [1, 1]
    assert tuple(heat_of(coarse).get_extent()) == tuple(heat_of(fine).get_extent())
    assert heat_of(coarse).get_alpha() == 1.0


def test_a_common_scale_is_shown_in_numbers() -> None:
    figure = montage(rows_of(2), scale=0.5)
    assert {heat_of(ax).get_clim() for i, ax in enumerate(figure.axes[:6]) if i % 3} == {(-0.5, 0.5)}
    bar = figure.axes[6]
    assert [text.get_text() for text in bar.get_yticklabels()] == ["−0.5", "0", "+0.5"]
    assert bar.get_ylabel() == "share of the output"


def test_a_montage_notes_negative_outputs_by_row_and_missing_mass_by_map() -> None:
    figure = montage(rows_of(2), values=torch.tensor([1.0, -2.0]), rests=torch.tensor([[0.0, 0.1], [0.0, 0.0]]), size=4)
    notes = [ax.get_xlabel().replace("\n", " ") for ax in figure.axes[:6]]
    expected = ["", "", "10.0 % of the mass not shown", "shares of a negative output (−2)", "", ""]
    assert notes == expected


BAD_GRIDS = {
    "no rows": ({"rows": []}, "not a grid", "no rows"),
    "no maps": ({"rows": rows_of(1, maps=0)}, "not a grid", "rows of 1"),
    "ragged": ({"rows": [*rows_of(1), *rows_of(1, maps=1)]}, "not a grid", "rows of 2, 3"),
    "names": ({"names": ["a"]}, "names does not fit", "1 entries"),
    "columns": ({"columns": ["a"]}, "columns does not fit", "1 entries"),
    "values": ({"values": [1.0]}, "values does not fit", "1 entries"),
    "rests": ({"rests": [[0.0, 0.0]]}, "rests does not fit", "1 entries"),
    "rests row": ({"rests": [[0.0, 0.0], [0.0]]}, r"rests\[1\] does not fit", "1 entries"),
    "value": ({"values": [1.0, float("nan")]}, "value has values", "NaN"),
}


@pytest.mark.parametrize("case", BAD_GRIDS)
def test_bad_grids_have_a_clear_text_and_leave_no_figure(case: str) -> None:
    arguments, what, got = BAD_GRIDS[case]
    with pytest.raises(QuestionError, match=what) as caught:
        montage(**{"rows": rows_of(2), **arguments})
    assert got in str(caught.value)
    assert caught.value.where == "nrm.plot.montage"
    assert plt.get_fignums() == []


def test_a_bad_panel_is_named() -> None:
    rows = [*rows_of(1), (torch.rand(3, 12, 16), torch.rand(12, 16), torch.rand(16, 12))]
    with pytest.raises(QuestionError, match="do not fit") as caught:
        montage(rows)
    assert caught.value.where == "nrm.plot.montage, row 1, heat map 1"


# Reading, and the optional extra


def test_channels_are_summed_in_double_precision() -> None:
    values = torch.full((1000, 2, 2), 0.1, dtype=torch.float32)
    np.testing.assert_allclose(read_relevance(values), 1000 * float(np.float32(0.1)), rtol=1e-14)


@pytest.mark.parametrize("draw", [lambda: heatmap(RELEVANCE), lambda: montage(rows_of(1)), diverging])
def test_without_matplotlib_the_extra_is_named(draw: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError, match=r'pip install "nrm\[viz\]"') as caught:
        draw()
    assert isinstance(caught.value, ImportError)
    assert "no module named 'matplotlib" in str(caught.value)


def test_only_a_missing_package_counts_as_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError), extra("viz", "test"):
        1 / 0
    with pytest.raises(ImportError, match="broken") as caught, extra("viz", "test"):
        raise ImportError("broken installation", name="matplotlib")
    assert not isinstance(caught.value, MissingExtraError)
    monkeypatch.setitem(sys.modules, "nrm.absent", None)
    with pytest.raises(ModuleNotFoundError) as caught, extra("viz", "test"):
        import nrm.absent  # noqa: F401
    assert not isinstance(caught.value, MissingExtraError)
    with pytest.raises(ValueError, match="no extra 'vis'"), extra("vis", "test"):
        pass

"""zennit-crp: a condition on a layer is an event, a recorded layer is a row of the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import vision
from peers.subjects import (
    TINY,
    WNIDS,
    column,
    images,
    photo,
    plain_cnn,
    relative_error,
    vgg16_imagenette,
)

pytestmark = pytest.mark.peer
vision.load()  # zennit imports torchvision
pytest.importorskip("zennit", reason="zennit is not installed: make peers")
pytest.importorskip("crp", reason="zennit-crp is not installed: make peers")

from crp.attribution import CondAttribution  # noqa: E402
from zennit.composites import EpsilonPlusFlat  # noqa: E402

import nrm  # noqa: E402

EARLY, LATE = "features.0", "features.3"


def explain(
    model: nn.Module, x: Tensor, target: int, conditions: dict[str, list[int]], record: list[str]
) -> tuple[Tensor, dict[str, Tensor]]:
    """zennit-crp's heat map (colours summed) and the relevance of recorded layers, as shares of the output."""
    composite = EpsilonPlusFlat(epsilon=TINY, stabilizer=TINY, zero_params="bias")
    attribution = CondAttribution(model, no_param_grad=False)
    result = attribution(x.clone().requires_grad_(), [{**conditions, "y": [target]}], composite, record_layer=record)
    value = result.prediction[:, target].detach()
    shares = {name: relevance.detach() / column(value, relevance) for name, relevance in result.relevances.items()}
    return result.heatmap.detach() / column(value, result.heatmap), shares


@pytest.fixture(params=range(4))
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor, int]:
    model, x = plain_cnn(request.param), images(request.param, batch=2)
    with torch.no_grad():
        target = int(model(x).abs().amin(0).argmax())  # the class that is far from zero for both images
    return model, x, target


def test_unconditional(case: tuple[nn.Module, Tensor, int]) -> None:
    model, x, target = case
    heat, inside = explain(model, x, target, {}, [EARLY, LATE])
    R = nrm.measure(model, x, target=target, rules="epsilon-plus-flat", bias="ignore")
    assert relative_error(R(R.input.positions), heat) < 1e-12
    for name in (EARLY, LATE):
        assert relative_error(R(R[name]), inside[name]) < 1e-12


def test_condition_on_one_layer(case: tuple[nn.Module, Tensor, int]) -> None:
    model, x, target = case
    R = nrm.measure(model, x, target=target, rules="epsilon-plus-flat", bias="ignore")
    a, b = R[EARLY], R[LATE]
    heats, rows = R(b.channels, R.input.positions), R(b.channels, a.channels)
    for k in range(6):
        heat, inside = explain(model, x, target, {LATE: [k]}, [EARLY])
        assert relative_error(R(R.input.positions, b.channel(k)), heat) < 1e-12
        assert relative_error(heats[:, k], heat) < 1e-12
        assert relative_error(R(a, b.channel(k)), inside[EARLY]) < 1e-12
        assert relative_error(rows[:, k], inside[EARLY].sum((2, 3))) < 1e-12


def test_condition_on_several_channels(case: tuple[nn.Module, Tensor, int]) -> None:
    model, x, target = case
    heat, _ = explain(model, x, target, {LATE: [1, 4]}, [EARLY])
    R = nrm.measure(model, x, target=target, rules="epsilon-plus-flat", bias="ignore")
    assert relative_error(R(R.input.positions, R[LATE].channel([1, 4])), heat) < 1e-12


def test_condition_on_two_layers(case: tuple[nn.Module, Tensor, int]) -> None:
    model, x, target = case
    R = nrm.measure(model, x, target=target, rules="epsilon-plus-flat", bias="ignore")
    a, b = R[EARLY], R[LATE]
    pairs = R(a.channels, b.channels)
    strongest = pairs.abs().sum(0).flatten().topk(4).indices.tolist()
    assert pairs.abs().sum(0).flatten()[strongest].min() > 1e-3
    for j, k in [divmod(index, pairs.shape[2]) for index in strongest]:
        heat, _ = explain(model, x, target, {LATE: [k], EARLY: [j]}, [])
        assert relative_error(R(R.input.positions, a.channel(j), b.channel(k)), heat) < 1e-12
        torch.testing.assert_close(pairs[:, j, k], heat.sum((1, 2)), rtol=1e-10, atol=1e-14)


def test_a_conditioned_layer_is_recorded_twice_by_crp(case: tuple[nn.Module, Tensor, int]) -> None:
    model, x, target = case
    _, inside = explain(model, x, target, {LATE: [2]}, [LATE])
    R = nrm.measure(model, x, target=target, rules="epsilon-plus-flat", bias="ignore")
    b = R[LATE]
    assert relative_error(R(b, b.channel(2)), inside[LATE] / 2) < 1e-12
    assert relative_error(R(b, b.channel(2))[:, 2], R(b)[:, 2]) < 1e-12


@pytest.mark.data
@pytest.mark.slow
def test_vgg16_rows_of_the_pair_table(shared: Callable[[str], Path]) -> None:
    model = vgg16_imagenette(shared("vgg16-imagenette/vgg16_imagenette.safetensors"))
    target = 3
    x = photo(shared("imagenette/val"), WNIDS[target])
    R = nrm.measure(model, x, target=target, rules="epsilon-plus-flat", bias="ignore")
    a, b = R["features.26"], R["features.28"]
    pairs = R(a.channels, b.channels)
    strongest = R(b.channels)[0].abs().topk(2).indices.tolist()
    for k in strongest:
        heat, inside = explain(model, x, target, {"features.28": [k]}, ["features.26"])
        assert relative_error(pairs[:, :, k], inside["features.26"].sum((2, 3))) < 1e-9
        assert relative_error(R(R.input.positions, b.channel(k)), heat) < 1e-9

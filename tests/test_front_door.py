"""The front door: what `import nrm` offers, and the first page of the design as one script."""

from __future__ import annotations

import typing
from collections import OrderedDict
from types import ModuleType

import pytest
import torch
from torch import nn

import nrm


def vgg() -> nn.Module:
    """The end of a VGG in small, under its names: layers 24, 26 and 28 are convolutions."""
    torch.manual_seed(0)
    features = nn.Sequential(*(nn.Identity() for _ in range(23)))
    for channels in ((3, 8), (8, 10), (10, 6)):
        features.append(nn.ReLU() if len(features) > 23 else nn.Identity())
        features.append(nn.Conv2d(*channels, 3, padding=1))
    features.append(nn.ReLU())
    for parameter in features.parameters():
        parameter.data.abs_()
    layers = {"features": features, "flat": nn.Flatten(), "classifier": nn.Linear(6 * 144, 5)}
    return nn.Sequential(OrderedDict(layers)).eval()


def test_the_first_page_of_the_design() -> None:
    model, image = vgg(), torch.rand(2, 3, 12, 12)

    R = nrm.measure(model, image, target=3, rules="epsilon-plus-flat")
    x, a, b = R.input, R["features.26"], R["features.28"]
    assert R(a).shape == (2, 10, 12, 12)
    assert R(a.channels).shape == (2, 10)
    assert R(a.channel(2), b.channel(1)).shape == (2,)
    assert R(a.channels, b.channels).shape == (2, 10, 6)
    assert R(x, a.channel(2), b.channel(1)).shape == (2, 3, 12, 12)
    assert R(x.positions, a.channel(2)).shape == (2, 12, 12)
    assert R(a.channels, given=b.channel(1)).shape == (2, 10)
    assert R(a[:, 4:8, 4:8] & ~a.channel(3)).shape == (2,)
    assert R.check().ok == (True, True)
    torch.testing.assert_close(R(a.all), torch.ones(2))
    torch.testing.assert_close(R(x, a.channel(2), b.channel(1)).sum((1, 2, 3)), R(a.channel(2), b.channel(1)))
    torch.testing.assert_close(R(a.channels, b.channels)[:, 2, 1], R(a.channel(2), b.channel(1)))


def test_every_name_is_documented_and_real() -> None:
    for name in nrm.__all__:
        thing = getattr(nrm, name)
        if callable(thing):
            assert thing.__doc__, name
        assert not isinstance(thing, ModuleType) or thing.__name__ == f"nrm.{name}", "a file of a room, by accident"
    with pytest.raises(AttributeError, match="no attribute 'mesure'"):
        nrm.mesure  # type: ignore[attr-defined]


def test_types_for_annotations() -> None:
    def ask(R: nrm.Measure, layer: nrm.Layer, event: nrm.Set, axis: nrm.Partition, cut: nrm.Cut) -> nrm.Check:
        return R.check()

    assert set(typing.get_type_hints(ask)) == {"R", "layer", "event", "axis", "cut", "return"}
    layer = nrm.layer("a")
    assert isinstance(layer, nrm.Layer)
    assert isinstance(layer.channel(1), nrm.Set)
    assert isinstance(layer.channels, nrm.Partition)
    assert isinstance(nrm.input, nrm.Layer)
    assert isinstance(nrm.output, nrm.Layer)


def test_errors_are_one_family() -> None:
    kinds = [kind for name, kind in vars(nrm.errors).items() if name.endswith("Error")]
    assert len(kinds) > 5
    assert all(issubclass(kind, nrm.NrmError) for kind in kinds)
    assert issubclass(nrm.NrmWarning, UserWarning)

"""The list of layers: containers, the view of blocks, and search."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nrm


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.two(torch.relu(self.one(x))) + x)


class Deep(nn.Module):
    """Blocks in a list that is never called itself, as those of a transformer are."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.layers = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.layers:
            x = block(x)
        return self.head(x)


class Wrapped(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.model = Deep(blocks)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).flatten(1)


def layers(model: nn.Module) -> nrm.measure.LayerTable:  # type: ignore[name-defined]
    torch.manual_seed(0)
    return nrm.measure(model.double(), torch.rand(2, 4).double(), target=0, rules="lrp-0").layers


def stages(blocks: int = 2) -> nn.Module:
    parts = {f"layer{n}": nn.Sequential(*(Block() for _ in range(blocks))) for n in range(1, 5)}
    net = nn.Sequential()
    for name, part in {"stem": nn.Linear(4, 4), **parts, "head": nn.Linear(4, 3)}.items():
        net.add_module(name, part)
    return net


def test_a_container_has_a_row_which_is_its_last_tensor() -> None:
    table = layers(stages())
    row = table["layer3"]
    last = [one for one in table if one.name.startswith("layer3.1")][-1]
    assert (row.shape, row.mass, row.channel) == (last.shape, last.mass, last.channel)
    assert row.kind == "Sequential"
    assert row.inside == sum(one.name.startswith("layer3.") for one in table)
    assert table["layer3.0"].kind == "Block"
    assert all(one.inside == 0 for one in table)  # the full list has every tensor once


def test_blocks_are_a_dozen_rows() -> None:
    table = layers(stages(6))
    assert len(table) > 100
    blocks = table.blocks
    assert 6 <= len(blocks) <= 16
    assert [row.name for row in blocks if row.name.startswith("layer2")][-1].startswith("layer2")
    names = [row.name for row in blocks]
    assert names[0] == "input"
    assert "head" in names


@pytest.mark.parametrize("model", [Deep(20), Wrapped(20)])
def test_the_blocks_of_a_list_are_rows_although_the_list_is_never_called(model: nn.Module) -> None:
    table = layers(model)
    names = [row.name.removeprefix("model.") for row in table.blocks]
    assert [f"layers.{n}" for n in range(20)] == [name for name in names if name.startswith("layers.")]
    assert len(names) < 26


def test_the_view_covers_every_layer_once() -> None:
    table = layers(stages(3))
    shown = table.blocks
    for row in table:
        around = [one for one in shown if one.name == row.name or row.name.startswith((f"{one.name}.", f"{one.name}/"))]
        assert len(around) == 1, row.name
    assert sum(max(one.inside, 1) for one in shown) == len(table)


def test_layers_are_searched() -> None:
    table = layers(stages())
    assert {row.name for row in table.find("one")} == {f"layer{n}.{k}.one" for n in range(1, 5) for k in range(2)}
    found = table.find("layer3*")
    names = [row.name for row in found]
    assert "layer3" in names
    assert all(name.startswith("layer3") for name in names)
    assert names.index("layer3.0") > names.index("layer3.0.two")
    assert [row.name for row in table.find("layer3.*").blocks][-1].startswith("layer3.1")
    assert not len(table.find("absent"))
    assert repr(table.find("absent")).splitlines()[0].startswith("name")
    with pytest.raises(nrm.QuestionError, match="no row 'layer33'") as caught:
        table["layer33"]
    assert "'layer3'" in str(caught.value)


def test_every_row_can_be_asked_for() -> None:
    torch.manual_seed(0)
    R = nrm.measure(stages().double(), torch.rand(2, 4).double(), target=0, rules="lrp-0")
    for row in (*R.layers, *R.layers.blocks, *R.layers.find("layer*")):
        torch.testing.assert_close(R(R[row.name].all), torch.tensor(row.mass).double())


def test_a_slice_is_a_list_again_and_differences_have_containers() -> None:
    torch.manual_seed(0)
    model, x = stages().double(), torch.rand(2, 4).double()
    D = nrm.measure(model, x, target=0, rules="lrp-0") - nrm.measure(model, x, target=1, rules="lrp-0")
    assert "layer3" in [row.name for row in D.layers.find("layer3")]
    assert D.layers["layer3"].mass == pytest.approx(D(D["layer3"].all).tolist(), abs=1e-9)
    assert repr(D.layers[:2]).count("\n") == 2

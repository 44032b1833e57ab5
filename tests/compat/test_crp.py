"""The door with zennit-crp's call: conditions are questions; agreement with zennit-crp is in tests/peers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.compat.crp import CondAttribution

LOW, HIGH = "1", "3"


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 16, 4)]
    for convolution in layers[:3:2]:
        convolution.bias.data.abs_()  # most units are active, and none of them by its bias alone
        convolution.weight.data += 0.05
    return nn.Sequential(*layers).double().eval()


def images(count: int) -> Tensor:
    return torch.rand(count, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def question(x: Tensor, target: int, **channels: list[int]) -> tuple[nrm.Measure, list[nrm.Set], Tensor]:
    """The measure, the sets and the output that a condition is about."""
    R = nrm.measure(network(), x, target=target, rules="epsilon-plus")
    return R, [R[name].channel(ids) for name, ids in channels.items()], R.value


CONDITIONS = [{HIGH: [2], "y": [1]}, {HIGH: [0, 4], "y": [3]}, {"y": [1], LOW: [5], HIGH: [2]}, {"y": 0}]


def test_every_condition_for_every_sample() -> None:
    attribution, x = CondAttribution(network()), images(2)
    result = attribution(x, CONDITIONS, "epsilon-plus", record_layer=["0"])
    assert result.heatmap.shape == (8, 8, 8)
    assert set(result.relevances) == set(result.activations) == {"0", LOW, HIGH}
    assert result.relevances["0"].shape == result.activations["0"].shape == (8, 6, 6, 6)
    torch.testing.assert_close(result.prediction, network()(x).detach().repeat_interleave(4, 0))
    for row, (sample, condition) in enumerate((s, c) for s in range(2) for c in CONDITIONS):
        channels = {name: ids for name, ids in condition.items() if name != "y"}
        target = condition["y"] if isinstance(condition["y"], int) else condition["y"][0]
        R, sets, value = question(x[[sample]], target, **channels)
        torch.testing.assert_close(result.heatmap[[row]], value * R(R.input.positions, *sets))
        for name in ("0", LOW, HIGH):
            torch.testing.assert_close(result.relevances[name][[row]], value * R(R[name], *sets))
            torch.testing.assert_close(result.activations[name][[row]], R.values(name))


def test_as_many_conditions_as_samples_are_pairs() -> None:
    attribution, x = CondAttribution(network(), rules="epsilon-plus"), images(4)
    result = attribution(x, CONDITIONS)
    every = attribution(x, [*CONDITIONS, {"y": [2]}])
    torch.testing.assert_close(result.heatmap, every.heatmap[[0, 6, 12, 18]])


def test_several_outputs_add_up() -> None:
    attribution, x = CondAttribution(network()), images(1)
    one, two, both = (attribution(x, [{HIGH: [2], "y": y}], record_layer=[LOW]) for y in ([1], [3], [1, 3]))
    torch.testing.assert_close(both.heatmap, one.heatmap + two.heatmap)
    torch.testing.assert_close(both.relevances[LOW], one.relevances[LOW] + two.relevances[LOW])
    torch.testing.assert_close(both.activations[LOW], one.activations[LOW])
    assert float((one.heatmap - two.heatmap).abs().max()) > 0


def test_without_a_condition_the_heat_map_sums_to_the_output() -> None:
    result = CondAttribution(network(), rules="epsilon-plus", bias="ignore")(images(3), [{"y": [2]}])
    torch.testing.assert_close(result.heatmap.sum((1, 2)), result.prediction[:, 2])


@pytest.mark.parametrize("size", [1, 3])
def test_batches_make_no_difference(size: int) -> None:
    attribution, x = CondAttribution(network()), images(2)
    torch.testing.assert_close(attribution(x, CONDITIONS, batch_size=size).heatmap, attribution(x, CONDITIONS).heatmap)


def test_ids_as_tensors_and_numbers() -> None:
    attribution, x = CondAttribution(network()), images(1)
    expected = attribution(x, [{HIGH: [2], "y": [1]}]).heatmap
    for ids, y in ((2, 1), (torch.tensor([2]), torch.tensor(1)), ((2,), [1]), ([2, 2], [1, 1])):
        assert torch.equal(attribution(x, [{HIGH: ids, "y": y}]).heatmap, expected)


def test_vectors_have_one_number_as_heat_map() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    result = CondAttribution(model)(torch.rand(2, 4), [{"1": [3], "y": [0]}])
    assert result.heatmap.shape == (2,)


ERRORS = [
    ("unknown option 'device'", lambda a, x: CondAttribution(network(), device="cpu")),
    ("data is a batch", lambda a, x: a(x.tolist(), [{"y": [1]}])),
    ("data is a batch", lambda a, x: a(x[0, 0, 0], [{"y": [1]}])),
    ("a list of dicts", lambda a, x: a(x, {"y": [1]})),
    ("a list of dicts", lambda a, x: a(x, [])),
    ("names the explained outputs", lambda a, x: a(x, [{HIGH: [1]}])),
    ("names the explained outputs", lambda a, x: a(x, ["y"])),
    ("(?s)a list of channels.*'3'", lambda a, x: a(x, [{HIGH: [], "y": [1]}])),
    ("a list of channels", lambda a, x: a(x, [{HIGH: [0.5], "y": [1]}])),
    ("a list of channels", lambda a, x: a(x, [{HIGH: "2", "y": [1]}])),
    ("no such block", lambda a, x: a(x, [{HIGH: [5], "y": [1]}])),
    ("target out of range", lambda a, x: a(x, [{HIGH: [1], "y": [4]}])),
    ("unknown layer", lambda a, x: a(x, [{"features.28": [1], "y": [1]}])),
    ("unknown layer", lambda a, x: a(x, [{"y": [1]}], record_layer=["nowhere"])),
    ("a list of layer names", lambda a, x: a(x, [{"y": [1]}], record_layer=HIGH)),
    ("batch_size=0", lambda a, x: a(x, [{"y": [1]}], batch_size=0)),
    ("unknown composite", lambda a, x: a(x, [{"y": [1]}], "epsilon-plus-flatt")),
]


@pytest.mark.parametrize(("text", "call"), ERRORS, ids=[f"{k} {text}" for k, (text, _) in enumerate(ERRORS)])
def test_errors(text: str, call: object) -> None:
    with pytest.raises(nrm.NrmError, match=text):
        call(CondAttribution(network()), images(1))  # type: ignore[operator]

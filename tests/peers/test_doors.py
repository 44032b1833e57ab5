"""The familiar doors beside the libraries whose calls they take: the same call gives the same result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vision
from peers.subjects import (
    TINY,
    WNIDS,
    FunctionalResidual,
    images,
    misread,
    photo,
    plain_cnn,
    relative_error,
    top_class,
    vgg16_imagenette,
)

pytestmark = pytest.mark.peer
vision.load()  # zennit imports torchvision
pytest.importorskip("captum", reason="captum is not installed: make peers")
pytest.importorskip("crp", reason="zennit-crp is not installed: make peers")

import captum.attr  # noqa: E402
from captum.attr import visualization  # noqa: E402
from captum.attr._utils.lrp_rules import Alpha1_Beta0_Rule, EpsilonRule, GammaRule  # noqa: E402
from captum.metrics import sensitivity_max  # noqa: E402
from crp.attribution import CondAttribution  # noqa: E402
from crp.concepts import ChannelConcept  # noqa: E402
from crp.helper import load_maximization  # noqa: E402
from crp.visualization import FeatureVisualization  # noqa: E402
from zennit.composites import EpsilonPlusFlat  # noqa: E402

import nrm  # noqa: E402
from nrm.compat.captum import LRP, LayerLRP  # noqa: E402
from nrm.compat.crp import CondAttribution as OurCondAttribution  # noqa: E402
from nrm.methods import relmax  # noqa: E402

# --- captum ---


def with_rules(model: nn.Module, convolution: Callable[[], object] = EpsilonRule) -> nn.Module:
    """captum's rules live on the modules and are gone after one call."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear | nn.MaxPool2d):
            module.rule = convolution() if isinstance(module, nn.Conv2d) else EpsilonRule()
            module.rule.STABILITY_FACTOR = TINY
    return model


RULES = {
    "epsilon": ({}, EpsilonRule, True),
    "gamma": (
        {"rules": {nn.Conv2d: nrm.Gamma(0.25), nn.Linear: nrm.Epsilon()}, "bias": "ignore"},
        lambda: GammaRule(0.25, set_bias_to_zero=True),
        False,
    ),
    "alpha1-beta0": (
        {"rules": {nn.Conv2d: nrm.AlphaBeta(1, 0), nn.Linear: nrm.Epsilon()}, "bias": "ignore"},
        lambda: Alpha1_Beta0_Rule(set_bias_to_zero=True),
        False,
    ),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RULES)
def test_the_same_attributions_and_deltas(name: str, seed: int) -> None:
    options, rule, bias = RULES[name]
    x = images(seed, signed=bias)
    target = top_class(plain_cnn(seed, bias=bias), x)
    theirs = captum.attr.LRP(with_rules(plain_cnn(seed, bias=bias), rule))
    expected, delta = theirs.attribute(x.clone().requires_grad_(), target=target, return_convergence_delta=True)
    model = plain_cnn(seed, bias=bias)
    found, own = LRP(model, **options).attribute(x, target=target, return_convergence_delta=True)
    assert relative_error(found, expected.detach()) < 1e-11
    scale = float(expected.detach().abs().sum())
    torch.testing.assert_close(own, delta.detach(), rtol=1e-9, atol=1e-11 * scale)


@pytest.mark.parametrize("target", [2, torch.tensor(2), torch.tensor([2]), [0, 2, 1], torch.tensor([0, 2, 1])])
def test_the_same_forms_of_targets(target: object) -> None:
    x = images(0)
    theirs = captum.attr.LRP(with_rules(plain_cnn(0)))
    expected = theirs.attribute(x.clone().requires_grad_(), target=target).detach()
    assert relative_error(LRP(plain_cnn(0)).attribute(x, target=target), expected) < 1e-11


class Tokens(nn.Module):
    """Outputs with more than one axis, for targets that are tuples; captum refuses Flatten and Unflatten modules."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.relu, self.head = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.mix(x))).reshape(len(x), 3, 4)


@pytest.mark.parametrize("target", [(1, 2), [(0, 3), (2, 1)]])
def test_the_same_targets_of_several_axes(target: object) -> None:
    torch.manual_seed(0)
    model, x = Tokens().double().eval(), torch.randn(2, 6, dtype=torch.float64)
    ours = LRP(model).attribute(x, target=target)
    expected = captum.attr.LRP(with_rules(model)).attribute(x.clone().requires_grad_(), target=target).detach()
    assert relative_error(ours, expected) < 1e-11


class Two(nn.Module):
    """Two inputs side by side, and an argument that is not explained."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 5), nn.Linear(3, 5)
        self.relu1, self.relu2, self.head = nn.ReLU(), nn.ReLU(), nn.Linear(10, 3)

    def forward(self, x: Tensor, y: Tensor, flip: bool = False) -> Tensor:
        h = [self.relu1(self.left(x)), self.relu2(self.right(y))]
        return self.head(torch.cat(h[::-1] if flip else h, 1))


@pytest.mark.parametrize("more", [None, (True,)])
def test_the_same_tuples_of_inputs_and_arguments(more: tuple[bool] | None) -> None:
    torch.manual_seed(0)
    model = Two().double().eval()
    x, y = torch.randn(2, 4, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    ours, own = LRP(model).attribute((x, y), 1, more, return_convergence_delta=True)
    theirs = captum.attr.LRP(with_rules(model))
    given = (x.clone().requires_grad_(), y.clone().requires_grad_())
    expected, delta = theirs.attribute(given, 1, more, return_convergence_delta=True)
    assert isinstance(ours, tuple)
    for mine, other in zip(ours, expected, strict=True):
        assert relative_error(mine, other.detach()) < 1e-11
    torch.testing.assert_close(own, delta.detach())


def test_the_same_layers() -> None:
    x = images(0)
    model = plain_cnn(0)
    ours = LayerLRP(model, [model.features[0], model.features[3]]).attribute(x, target=2)
    with_rules(model)
    theirs = captum.attr.LayerLRP(model, [model.features[0], model.features[3]])
    expected = theirs.attribute(x.clone().requires_grad_(), target=2)
    for mine, other in zip(ours, expected, strict=True):
        assert relative_error(mine, other.detach()) < 1e-11


def test_captums_own_tools_take_it() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    model, x = plain_cnn(0), images(0)
    lrp = LRP(model)
    heat = lrp.attribute(x, target=2)
    picture = heat[0].permute(1, 2, 0).numpy()
    figure, axis = visualization.visualize_image_attr(picture, method="heat_map", sign="all", use_pyplot=False)
    assert axis.images
    matplotlib.pyplot.close(figure)
    changed = sensitivity_max(lrp.attribute, x, perturb_radius=1e-9, n_perturb_samples=1, target=2)
    assert float(changed.max()) < 1e-4


def test_a_residual_sum_is_complete_here_and_doubled_there() -> None:
    model, x = misread(FunctionalResidual, 0)
    attributions, delta = LRP(model).attribute(x, target=0, return_convergence_delta=True)
    value = model(x)[:, 0].detach()
    torch.testing.assert_close(attributions.sum(1), value)
    assert float(delta.abs().max()) < 1e-12
    theirs = captum.attr.LRP(with_rules(model)).attribute(x.clone().requires_grad_(), target=0).detach()
    assert float(((theirs.sum(1) - value) / value).abs().median()) > 0.1, "captum reads this network now"


# --- zennit-crp ---

COMPOSITE = {"epsilon": TINY, "stabilizer": TINY, "zero_params": "bias"}
EARLY, LATE = "features.0", "features.3"


@pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")  # an output near 0 has large shares
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "conditions",
    [
        [{"y": [1]}],
        [{LATE: [2], "y": [1]}],
        [{LATE: [2], "y": [1]}, {LATE: [1, 4], "y": [3]}, {LATE: [0], "y": [1]}],  # every one for every image
        [{LATE: [2], "y": [1]}, {LATE: [1, 4], "y": [3]}],  # as many as images: pair by pair
        [{LATE: [2], EARLY: [1, 3, 6], "y": [0, 1]}],
    ],
)
def test_conditions(conditions: list[dict[str, list[int]]], seed: int) -> None:
    model, x = plain_cnn(seed), images(seed, batch=2)
    attribution = CondAttribution(model, no_param_grad=False)
    record = [name for name in (EARLY, LATE) if not any(name in c for c in conditions)][:1]
    record = [] if record == [LATE] else record
    expected = attribution(
        x.clone().requires_grad_(), conditions, EpsilonPlusFlat(**COMPOSITE), record_layer=list(record)
    )
    result = OurCondAttribution(model)(x, conditions, "epsilon-plus-flat", record_layer=record)
    assert relative_error(result.heatmap, expected.heatmap.detach()) < 1e-11
    torch.testing.assert_close(result.prediction, expected.prediction.detach())
    assert set(result.relevances) == set(expected.relevances)
    for name in result.activations:
        torch.testing.assert_close(result.activations[name], expected.activations[name])
    for name in record:
        assert relative_error(result.relevances[name], expected.relevances[name]) < 1e-11


def test_a_layer_above_the_condition_is_not_conditioned_by_crp() -> None:
    model, x = plain_cnn(0), images(0, batch=1)
    conditions = [{EARLY: [3], "y": [1]}]
    theirs = CondAttribution(model, no_param_grad=False)(
        x.clone().requires_grad_(), conditions, EpsilonPlusFlat(**COMPOSITE), record_layer=[LATE]
    )
    ours = OurCondAttribution(model)(x, conditions, "epsilon-plus-flat", record_layer=[LATE])
    free = OurCondAttribution(model)(x, [{"y": [1]}], "epsilon-plus-flat", record_layer=[LATE])
    assert relative_error(free.relevances[LATE], theirs.relevances[LATE]) < 1e-11
    torch.testing.assert_close(ours.relevances[LATE].sum(), ours.heatmap.sum())


class Pictures(torch.utils.data.Dataset):
    """Images with labels, as zennit-crp wants them."""

    def __init__(self, x: Tensor, labels: Tensor) -> None:
        self.x, self.labels = x, labels

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], int(self.labels[index])


def check_job(model: nn.Module, data: Pictures, name: str, found: tuple[np.ndarray, ...], k: int, least: int) -> None:
    """The dataset job finds the samples, scores and places of zennit-crp, wherever a channel is alive."""
    layer = nrm.layer(name)
    job = nrm.relmax(
        model, data, layer.channels, k=k, target="label", rules="epsilon-plus-flat", bias="ignore", batch_size=3,
        shard_size=6, progress=False,
    )  # fmt: skip
    samples, scores, places = (table[:k].T for table in found)
    width = job.facts["questions"][0]["layer"][1][-1]
    compared = 0
    for channel in range(len(scores)):
        hits = job.top(layer.channel(channel))
        np.testing.assert_allclose(hits.scores, scores[channel], rtol=1e-7, atol=1e-9)
        for rank, hit in enumerate(hits):
            if scores[channel, rank] > 1e-6:
                row, column = hit.place[1:]
                assert (hit.sample, row * width + column) == (samples[channel, rank], places[channel, rank])
                compared += 1
    assert compared >= least


@pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")
@pytest.mark.parametrize("seed", range(2))
def test_relmax_finds_the_same_samples(seed: int, tmp_path: Path) -> None:
    model, x = plain_cnn(seed), images(seed, batch=30)
    data = Pictures(x, torch.arange(30) % 4)
    layers = {EARLY: ChannelConcept(), LATE: ChannelConcept()}
    attribution = CondAttribution(model, no_param_grad=False)
    search = FeatureVisualization(attribution, data, layers, max_target="sum", abs_norm=False, path=str(tmp_path))
    search.run(EpsilonPlusFlat(**COMPOSITE), 0, len(data), batch_size=8)
    for name in layers:
        samples, scores, places = load_maximization(search.RelMax.PATH, name)
        check_job(model, data, name, (samples, scores, places), 10, 30)
        ours = relmax(
            model, data, nrm.layer(name).channels, k=10, target="label", weight="logit", rules="epsilon-plus-flat",
            bias="ignore", batch_size=7,
        )  # fmt: skip
        expected = torch.from_numpy(scores[:10].copy()).T
        torch.testing.assert_close(ours.scores, expected, rtol=1e-9, atol=1e-12)
        alive = expected.abs() > 1e-9  # dead channels have equal scores, which we order and zennit-crp does not
        assert int(alive.sum()) >= 40
        assert torch.equal(ours.samples[alive], torch.from_numpy(samples[:10].copy()).T[alive])


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")
def test_relmax_finds_the_same_photos(shared: Callable[[str], Path], tmp_path: Path) -> None:
    model = vgg16_imagenette(shared("vgg16-imagenette/vgg16_imagenette.safetensors"))
    folder = shared("imagenette/val")
    small = torch.cat([photo(folder, wnid)[..., ::2, ::2] for wnid in WNIDS[:6]])
    data = Pictures(small, torch.arange(6))
    name = "features.28"
    attribution = CondAttribution(model)
    search = FeatureVisualization(attribution, data, {name: ChannelConcept()}, abs_norm=False, path=str(tmp_path))
    search.run(EpsilonPlusFlat(**COMPOSITE), 0, len(data), batch_size=3)
    samples, scores, places = load_maximization(search.RelMax.PATH, name)
    check_job(model, data, name, (samples, scores, places), 5, 800)
    ours = relmax(
        model, data, nrm.layer(name).channels, k=5, target="label", rules="epsilon-plus-flat", bias="ignore",
        batch_size=3,
    )  # fmt: skip
    expected = torch.from_numpy(scores[:5].copy()).T
    torch.testing.assert_close(ours.scores, expected, rtol=1e-7, atol=1e-9)
    alive = expected.abs() > 1e-6
    assert int(alive.sum()) > 1000
    assert torch.equal(ours.samples[alive], torch.from_numpy(samples[:5].copy()).T[alive])


# --- Quantus ---


class Near:
    """Numbers that are equal up to rounding: Quantus compares sums of floats bit by bit."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __eq__(self, other: object) -> object:
        return np.isclose(other, self.values, rtol=1e-5, atol=1e-7)


def arrays(seed: int) -> tuple[nn.Module, np.ndarray, np.ndarray]:
    model, x = plain_cnn(seed, bias=False).float(), images(seed, batch=4).float()  # Quantus calls models in float32
    return model, x.numpy(), top_class(model, x).numpy()


@pytest.mark.parametrize("seed", range(3))
def test_quantus_finds_it_complete(seed: int) -> None:
    quantus = pytest.importorskip("quantus", reason="Quantus is not installed: make peers")
    model, x, y = arrays(seed)
    metric = quantus.Completeness(
        abs=False, normalise=False, output_func=Near, perturb_baseline=0.0, disable_warnings=True
    )
    scores = metric(model=model, x_batch=x, y_batch=y, explain_func=nrm.compat.quantus, softmax=False, device="cpu")
    assert [bool(score) for score in scores] == [True] * 4

    def share(model: nn.Module, inputs: np.ndarray, targets: np.ndarray, **_: object) -> np.ndarray:
        R = nrm.measure(model, torch.from_numpy(inputs), target=torch.from_numpy(targets), rules="lrp-0")
        return R(R.input).numpy()

    scores = metric(model=model, x_batch=x, y_batch=y, explain_func=share, softmax=False)
    assert not any(bool(score) for score in scores), "a share is complete: the test sees nothing"


def test_quantus_sees_random_weights() -> None:
    quantus = pytest.importorskip("quantus", reason="Quantus is not installed: make peers")
    model, x, y = arrays(0)
    metric = quantus.MPRT(
        similarity_func=quantus.similarity_func.correlation_pearson, layer_order="top_down", abs=False, normalise=False,
        disable_warnings=True, display_progressbar=False,
    )  # fmt: skip
    scores = metric(model=model, x_batch=x, y_batch=y, explain_func=nrm.compat.quantus, device="cpu")
    original, *_, every = (np.array(correlations) for correlations in scores.values())
    np.testing.assert_allclose(original, 1, rtol=1e-5)
    assert np.abs(every).max() < 0.3, "the heat map does not depend on the weights"

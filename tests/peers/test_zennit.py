"""zennit: the same numbers on plain networks, and the networks that it misreads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import vision
from peers.subjects import (
    MISREAD,
    TINY,
    WNIDS,
    SharedParameter,
    gradient_truth,
    images,
    misread,
    normed_cnn,
    onehot,
    photo,
    plain_cnn,
    relative_error,
    sums,
    top_class,
    vgg16_imagenette,
)

pytestmark = pytest.mark.peer
vision.load()  # zennit imports torchvision
pytest.importorskip("zennit", reason="zennit is not installed: make peers")

from zennit.attribution import Gradient  # noqa: E402
from zennit.composites import (  # noqa: E402
    EpsilonAlpha2Beta1,
    EpsilonAlpha2Beta1Flat,
    EpsilonGammaBox,
    EpsilonPlus,
    EpsilonPlusFlat,
)
from zennit.rules import AlphaBeta as ZennitAlphaBeta  # noqa: E402

import nrm  # noqa: E402
from nrm.rules import AlphaBeta, composite  # noqa: E402

LOW = torch.tensor([-4.0, -5.0, -6.0], dtype=torch.float64).view(1, 3, 1, 1)
HIGH = torch.tensor([6.0, 4.0, 5.0], dtype=torch.float64).view(1, 3, 1, 1)

# our name -> (our rules, their composite)
COMPOSITES = {
    "epsilon-plus": ("epsilon-plus", EpsilonPlus),
    "epsilon-plus-flat": ("epsilon-plus-flat", EpsilonPlusFlat),
    "epsilon-alpha2-beta1": ("epsilon-alpha2-beta1", EpsilonAlpha2Beta1),
    "epsilon-alpha2-beta1-flat": ("epsilon-alpha2-beta1-flat", EpsilonAlpha2Beta1Flat),
    "epsilon-gamma-box": (
        composite("epsilon-gamma-box", low=LOW, high=HIGH),
        lambda **options: EpsilonGammaBox(LOW, HIGH, **options),
    ),
}


def explain(
    model: nn.Module,
    x: Tensor,
    target: int | Tensor,
    peer: Callable[..., object],
    *,
    bias: str,
    layers: tuple[str, ...] = (),
) -> tuple[Tensor, dict[str, Tensor]]:
    """zennit's relevance of the input and of some layers, started with 1 so that it is a share as ours is."""
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: object, output: Tensor) -> None:
            output.retain_grad()
            kept[name] = output

        return hook

    handles = [model.get_submodule(name).register_forward_hook(keep(name)) for name in layers]
    options = {"zero_params": "bias"} if bias == "ignore" else {}
    with Gradient(model, peer(epsilon=TINY, stabilizer=TINY, **options)) as attributor:
        _, relevance = attributor(x.clone(), lambda output: onehot(target, output))
    for handle in handles:
        handle.remove()
    return relevance.detach(), {name: tensor.grad.detach() for name, tensor in kept.items()}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", COMPOSITES)
def test_composites_agree(name: str, seed: int) -> None:
    model, x = plain_cnn(seed), images(seed)
    target = top_class(model, x)
    rules, peer = COMPOSITES[name]
    layers = ("features.0", "features.3", "classifier.0")
    theirs, inside = explain(model, x, target, peer, bias="ignore", layers=layers)
    torch.testing.assert_close(
        sums(theirs), torch.ones(len(x), dtype=x.dtype), msg="a column that zennit cannot normalize"
    )

    R = nrm.measure(model, x, target=target, rules=rules, bias="ignore")
    assert relative_error(R(R.input), theirs) < 1e-12
    for layer in layers:
        assert relative_error(R(R[layer]), inside[layer]) < 1e-12, layer


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", COMPOSITES)
def test_biases_as_inputs_are_what_leaks_in_zennit(name: str, seed: int) -> None:
    model, x = plain_cnn(seed), images(seed)
    target = top_class(model, x)
    rules, peer = COMPOSITES[name]
    theirs, _ = explain(model, x, target, peer, bias="input")
    assert (sums(theirs) - 1).abs().max() > 1e-3, "zennit's sum leaks into biases without a trace"

    R = nrm.measure(model, x, target=target, rules=rules, bias="input")
    assert relative_error(R(R.input), theirs) < 1e-12
    biases = sum(sums(R(layer)) for layer in R.biases)
    torch.testing.assert_close(sums(R(R.input)) + biases, torch.ones(len(x), dtype=x.dtype))


@pytest.mark.parametrize("bias", ["ignore", "input"])
@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("name", COMPOSITES)
def test_batch_norm_is_folded_and_average_pooling_agrees(name: str, seed: int, bias: str) -> None:
    model, x = normed_cnn(seed), images(seed)
    target = top_class(model, x)
    rules, peer = COMPOSITES[name]
    # Folded by torch: zennit's own canonizer keeps the norm's eps and is off by 1e-6.
    folded = nn.Sequential(
        fuse_conv_bn_eval(model[0], model[1]), *model[2:4], fuse_conv_bn_eval(model[4], model[5]), *model[6:]
    )
    theirs, _ = explain(folded, x, target, peer, bias=bias)
    if bias == "ignore":
        assert (sums(theirs) - 1).abs().max() < 1e-10, "the network has a column that zennit cannot normalize"

    R = nrm.measure(model, x, target=target, rules=rules, bias=bias)
    assert relative_error(R(R.input), theirs) < 1e-11


def test_alpha_beta_beyond_a_difference_of_one() -> None:
    with pytest.raises(ValueError, match="must equal 1"):
        ZennitAlphaBeta(alpha=3.0, beta=1.0)

    torch.manual_seed(0)
    model, x = nn.Linear(5, 2, bias=False).double(), torch.randn(4, 5, dtype=torch.float64)
    products = x * model.weight[0].detach()
    positive, negative = products.clamp(min=0), products.clamp(max=0)
    truth = (3 * positive / positive.sum(1, keepdim=True) - negative / negative.sum(1, keepdim=True)) / 2
    R = nrm.measure(model, x, target=0, rules={nn.Linear: AlphaBeta(3, 1)}, bias="ignore")
    assert relative_error(R(R.input), truth) < 1e-12


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", MISREAD)
def test_networks_that_zennit_misreads(kind: type[nn.Module], seed: int) -> None:
    model, x = misread(kind, seed)
    truth = gradient_truth(model, x, 0)
    theirs, _ = explain(model, x, 0, EpsilonPlus, bias="ignore")
    assert relative_error(theirs, truth) > 0.5, "zennit reads this network now: move it to the agreements"

    R = nrm.measure(model, x, target=0, rules="lrp-0", bias="ignore")
    assert relative_error(R(R.input), truth) < 1e-10


def test_a_module_called_twice_looks_right_in_the_sum() -> None:
    """Why a sum of 1 proves little: zennit's is perfect here, and the heat map is wrong."""
    model, x = misread(MISREAD[0], 0)
    theirs, _ = explain(model, x, 0, EpsilonPlus, bias="ignore")
    torch.testing.assert_close(sums(theirs), torch.ones(len(x), dtype=x.dtype))
    assert relative_error(theirs, gradient_truth(model, x, 0)) > 0.5


@pytest.mark.parametrize("seed", range(3))
def test_tied_parameters_stay_tied(seed: int) -> None:
    model, x = misread(SharedParameter, seed)
    truth = gradient_truth(model, x, 0)
    theirs, _ = explain(model, x, 0, EpsilonPlus, bias="ignore")
    assert relative_error(theirs, truth) < 1e-12

    weight = model.first.weight
    R = nrm.measure(model, x, target=0, rules="lrp-0", bias="ignore")
    assert relative_error(R(R.input), truth) < 1e-10
    assert model.first.weight is weight
    assert model.second.weight is weight


@pytest.mark.data
@pytest.mark.slow
def test_vgg16_agrees(shared: Callable[[str], Path]) -> None:
    model = vgg16_imagenette(shared("vgg16-imagenette/vgg16_imagenette.safetensors"))
    target = 3
    x = photo(shared("imagenette/val"), WNIDS[target])
    layers = ("features.0", "features.14", "features.26", "features.28", "classifier.0")
    theirs, inside = explain(model, x, target, EpsilonPlusFlat, bias="ignore", layers=layers)

    R = nrm.measure(model, x, target=target, rules="epsilon-plus-flat", bias="ignore")
    for layer in layers:
        assert relative_error(R(R[layer]), inside[layer]) < 1e-9, layer
    assert relative_error(R(R.input), theirs) < 1e-9

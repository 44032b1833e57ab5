"""The door with captum's call: shapes, targets, deltas and errors; agreement with captum is in tests/peers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.compat.captum import LRP, LayerLRP


class Net(nn.Module):
    """Two inputs, an embedding, a switch, and outputs with as many axes as wanted."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 6), nn.Linear(3, 6)
        self.relu = nn.ReLU()
        self.words = nn.Embedding(10, 6)
        self.shape = shape
        self.head = nn.Linear(6, int(torch.tensor(shape).prod()) if shape else 1)

    def forward(
        self, x: Tensor, y: Tensor | None = None, ids: Tensor | None = None, scale: float = 1.0, doubled: bool = False
    ) -> Tensor:
        h = self.left(x) * scale
        h = h if y is None else h + self.right(y)
        h = h if ids is None else h + self.words(ids).sum(1)
        out = self.head(self.relu(h)).reshape(len(x), *self.shape)
        return 2 * out if doubled else out


def net(*shape: int) -> Net:
    torch.manual_seed(0)
    return Net(*shape).double().eval()


X = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.rand(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_attributions_are_output_times_share() -> None:
    model = net(5)
    R = nrm.measure(model, X, target=2, rules="lrp-0")
    value = model(X)[:, 2].detach()
    found, delta = LRP(model).attribute(X, target=2, return_convergence_delta=True)
    torch.testing.assert_close(found, R(R.input) * value[:, None])
    torch.testing.assert_close(delta, value - found.sum(1))
    assert torch.equal(LRP(model).attribute(X, target=2), found)
    biases = torch.stack([R(b.all) for b in R.biases]).sum(0)
    torch.testing.assert_close(delta, value * biases)
    assert float(delta.abs().min()) > 1e-6


def test_options_are_the_measures() -> None:
    model = net(5)
    R = nrm.measure(model, X, target=2, rules=nrm.Gamma(0.5), bias="ignore")
    found = LRP(model, rules=nrm.Gamma(0.5), bias="ignore").attribute(X, target=2)
    torch.testing.assert_close(found, R(R.input) * R.value[:, None])


@pytest.mark.parametrize("target", [[1, 4, 0], torch.tensor([1, 4, 0]), torch.tensor([1, 4, 0]).numpy()])
def test_a_target_per_sample(target: object) -> None:
    found = LRP(net(5)).attribute(X, target=target)
    for i, one in enumerate([1, 4, 0]):
        torch.testing.assert_close(found[[i]], LRP(net(5)).attribute(X[[i]], target=one))


@pytest.mark.parametrize("target", [2, torch.tensor(2), torch.tensor([2])])
def test_a_target_for_all(target: object) -> None:
    assert torch.equal(LRP(net(5)).attribute(X, target=target), LRP(net(5)).attribute(X, target=[2, 2, 2]))


def test_targets_of_outputs_with_more_axes() -> None:
    model = net(2, 3)
    found, delta = LRP(model).attribute(X, target=(1, 2), return_convergence_delta=True)
    torch.testing.assert_close(found.sum(1) + delta, model(X)[:, 1, 2].detach())
    own = LRP(model).attribute(X, target=[(1, 2), (0, 1), (1, 0)])
    torch.testing.assert_close(own[0], found[0])
    torch.testing.assert_close(own[[1]], LRP(model).attribute(X[[1]], target=(0, 1)))


@pytest.mark.parametrize("shape", [(), (1,)])
def test_no_target_for_a_single_output(shape: tuple[int, ...]) -> None:
    model = net(*shape)
    found, delta = LRP(model).attribute(X, return_convergence_delta=True)
    torch.testing.assert_close(found.sum(1) + delta, model(X).detach().reshape(3))


def test_tuples_of_inputs() -> None:
    model = net(5)
    (one, two), delta = LRP(model).attribute((X, Y), target=2, return_convergence_delta=True)
    assert (one.shape, two.shape, delta.shape) == (X.shape, Y.shape, (3,))
    R = nrm.measure(model, (X, Y), target=2, rules="lrp-0")
    torch.testing.assert_close(two, R(R["input[1]"]) * R.value[:, None])
    torch.testing.assert_close(one.sum(1) + two.sum(1) + delta, model(X, Y)[:, 2].detach())
    (alone,) = LRP(model).attribute((X,), target=2)
    assert torch.equal(alone, LRP(model).attribute(X, target=2))


def test_additional_arguments_have_no_attributions() -> None:
    model, ids = net(5), torch.tensor([[1, 2], [3, 4], [5, 6]])
    found = LRP(model).attribute(X, target=2, additional_forward_args=(Y, ids, 0.5, True))
    both = LRP(model).attribute((X, Y), target=2, additional_forward_args=(ids, 0.5, True))
    assert torch.equal(found, both[0])
    _, delta = LRP(model).attribute((X, Y), 2, (ids, 0.5, True), True)
    total = both[0].sum(1) + both[1].sum(1) + delta
    torch.testing.assert_close(total, model(X, Y, ids, 0.5, True)[:, 2].detach())
    assert torch.equal(LRP(model).attribute(X, 2, Y), LRP(model).attribute((X, Y), 2)[0])


def test_layers() -> None:
    model = net(5)
    R = nrm.measure(model, X, target=2, rules="lrp-0")
    for layer in (model.relu, "relu"):
        found, delta = LayerLRP(model, layer).attribute(X, target=2, return_convergence_delta=True)
        torch.testing.assert_close(found, R(R["relu"]) * R.value[:, None])
        torch.testing.assert_close(delta, R.value - found.sum(1))
    (one, two), deltas = LayerLRP(model, [model.left, model.relu]).attribute(X, 2, return_convergence_delta=True)
    torch.testing.assert_close(two, found)
    torch.testing.assert_close(deltas[0], R.value - one.sum(1))
    below = LayerLRP(model, model.left).attribute(X, 2, attribute_to_layer_input=True)
    torch.testing.assert_close(below, LRP(model).attribute(X, 2))
    ids = torch.tensor([[1, 2], [3, 4], [5, 6]])
    words = LayerLRP(model, model.words).attribute((X, Y, ids), target=2)
    assert words.shape == (3, 2, 6)


def test_nothing_is_left_behind() -> None:
    model = net(5)
    before = [set(vars(m)) for m in model.modules()]
    x = X.clone().requires_grad_()
    first, second = (LRP(model).attribute(x, target=2) for _ in range(2))
    assert torch.equal(first, second)
    assert x.grad is None
    assert not first.requires_grad
    assert [set(vars(m)) for m in model.modules()] == before


def test_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    LRP(net(5)).attribute(X, target=2, verbose=True)
    assert "rules='lrp-0'" in capsys.readouterr().out


ERRORS = [
    ("not a model", lambda m: LRP(lambda x: x)),
    ("(?s)unknown option 'rule'.*rules=", lambda m: LRP(m, rule="lrp-0")),
    ("unknown option 'batch_dim'", lambda m: LRP(m, batch_dim=1)),
    ("a target is needed", lambda m: LRP(m).attribute(X)),
    ("target out of range", lambda m: LRP(m).attribute(X, target=5)),
    ("target out of range", lambda m: LRP(m).attribute(X, target=-1)),
    ("a target is a class index", lambda m: LRP(m).attribute(X, target=0.5)),
    ("targets and samples do not match", lambda m: LRP(m).attribute(X, target=[0, 1])),
    ("different forms", lambda m: LRP(m).attribute(X, target=[(0, 1), (0,), 3])),
    ("does not fit an output", lambda m: LRP(m).attribute(X, target=(0, 1))),
    ("integers have no attributions", lambda m: LRP(m).attribute(torch.ones(3, 4).long(), target=0)),
    ("inputs are a tensor", lambda m: LRP(m).attribute([X], target=0)),
    ("inputs are a tensor", lambda m: LRP(m).attribute((), target=0)),
    ("inputs are a tensor", lambda m: LRP(m).attribute(None, target=0)),
    ("not a layer of this model", lambda m: LayerLRP(m, nn.ReLU())),
    ("not a layer of this model", lambda m: LayerLRP(m, m)),
    ("unknown layer", lambda m: LayerLRP(m, "relo").attribute(X, target=0)),
]


@pytest.mark.parametrize(("text", "call"), ERRORS, ids=[f"{k} {text}" for k, (text, _) in enumerate(ERRORS)])
def test_errors(text: str, call: object) -> None:
    with pytest.raises(nrm.NrmError, match=text):
        call(net(5))  # type: ignore[operator]


def test_rules_on_modules_are_refused() -> None:
    model = net(5)
    model.left.rule = object()
    with pytest.raises(nrm.QuestionError, match=r"(?s)rules on modules are not read.*'left'"):
        LRP(model)

"""RelMax: the samples that a loop over single measures finds, whatever the batches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import nrm
from nrm.methods import Maxima, relmax

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")  # outputs near 0 have large shares

A, B = nrm.layer("1"), nrm.layer("3")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)
    return nn.Sequential(*layers).double().eval()


def samples(count: int = 23) -> Tensor:
    return torch.randn(count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def one_by_one(model: nn.Module, inputs: Tensor, concepts: tuple, weight: str, **options: object) -> Tensor:
    """The scores of every sample, from a measure of its own: (samples, *axes)."""
    rows = []
    for x in inputs:
        R = nrm.measure(model, x[None], **options)
        output = model(x[None])[0].detach()
        target = int(R.target)
        factor = {"logit": output[target], "softmax": output.softmax(0)[target], "none": 1.0}[weight]
        rows.append(R(*concepts)[0] * factor)
    return torch.stack(rows)


QUESTIONS = {
    "every neuron": ((A,), (8,)),
    "a set": ((A.channel([2, 5]),), ()),
    "channels": ((A.channels,), (8,)),
    "pairs": ((A.channels, B.channels), (8, 6)),
    "a formula": ((nrm.visits(A.channel(2)) | nrm.visits(B.channel([1, 4])),), ()),
    "one pair": ((A.channel([2, 5]), B.channel([1, 4, 5])), ()),
}


@pytest.mark.parametrize("weight", ["logit", "softmax", "none"])
@pytest.mark.parametrize("name", QUESTIONS)
def test_the_best_of_all(name: str, weight: str) -> None:
    concepts, axes = QUESTIONS[name]
    model, inputs = network(), samples()
    options = {"rules": "lrp-0", "target": 1}
    found = relmax(model, inputs, *concepts, k=4, weight=weight, batch_size=5, **options)
    assert found.samples.shape == found.scores.shape == (*axes, 4)
    assert (found.count, found.weight, found.concepts) == (23, weight, concepts)
    scores = one_by_one(model, inputs, concepts, weight, **options)
    best = scores.sort(dim=0, descending=True, stable=True)
    torch.testing.assert_close(found.scores, best.values[:4].movedim(0, -1))
    assert torch.equal(found.samples, best.indices[:4].movedim(0, -1))
    assert float(found.scores.abs().max()) > 0


def test_a_loader_of_single_samples() -> None:
    found = relmax(network(), DataLoader(samples(), batch_size=None), A.channels, k=3)
    assert torch.equal(found.samples, relmax(network(), samples(), A.channels, k=3).samples)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_batches_make_no_difference(size: int) -> None:
    model, inputs = network(), samples()
    expected = relmax(model, inputs, A.channels, B.channels, k=3)
    found = relmax(model, (x for x in inputs), A.channels, B.channels, k=3, batch_size=size)
    assert torch.equal(found.samples, expected.samples)
    torch.testing.assert_close(found.scores, expected.scores)


def test_equal_samples_come_in_their_order() -> None:
    model = network()
    model[0].bias.data[2] = -100.0  # a channel that is never active: all scores are exactly 0
    for size in (1, 4, 100):
        found = relmax(model, samples(), A.channel(2), k=6, batch_size=size)
        assert found.samples.tolist() == list(range(6))
        assert found.scores.tolist() == [0.0] * 6


def test_fewer_samples_than_wanted() -> None:
    found = relmax(network(), samples(3), A.channels, k=8)
    assert found.samples.shape == (8, 3)
    assert found.samples.sort(-1).values.tolist() == [[0, 1, 2]] * 8


def test_labels_are_explained_if_asked_for() -> None:
    model, inputs = network(), samples(9)
    labels = torch.arange(9) % 3
    for pairs in (zip(inputs, labels, strict=True), [(x, int(y)) for x, y in zip(inputs, labels, strict=True)]):
        found = relmax(model, pairs, A.channels, target="label", k=2, batch_size=4)
        R = nrm.measure(model, inputs, target=labels)
        best = (R(A.channels) * R.value[:, None]).sort(0, descending=True).indices[:2].T
        assert torch.equal(found.samples, best)
    assert torch.equal(
        relmax(model, zip(inputs, labels, strict=True), A.channels).samples, relmax(model, inputs, A.channels).samples
    )


def test_samples_of_several_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.relu = nn.Linear(4, 5), nn.Linear(2, 5), nn.ReLU()
            self.head = nn.Linear(5, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.head(self.relu(self.left(x) + self.right(y)))

    torch.manual_seed(0)
    model, x, y = Two().eval(), torch.rand(6, 4), torch.rand(6, 2)
    concept = nrm.layer("relu").channels
    R = nrm.measure(model, (x, y))
    best = (R(concept) * R.value[:, None]).sort(0, descending=True).indices[:2].T
    assert torch.equal(relmax(model, zip(x, y, strict=True), concept, k=2).samples, best)
    named = [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]
    assert torch.equal(relmax(model, named, concept, k=2).samples, best)


def test_inputs_of_different_sizes_one_by_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
    inputs = [torch.rand(2, n) for n in (6, 9, 7)]
    assert relmax(model, inputs, A.channels, k=2, batch_size=1).samples.shape == (4, 2)
    together = relmax(model, inputs, A.channels, k=2)  # what cannot be put into one batch is explained one by one
    assert torch.equal(together.samples, relmax(model, inputs, A.channels, k=2, batch_size=1).samples)
    with pytest.raises(nrm.QuestionError, match="different shapes"):
        relmax(model, inputs, A, batch_size=1)


def test_samples_of_a_call_that_is_one_sample() -> None:
    found = relmax(network(), samples(5), A, batch_dim=None, k=2)
    assert torch.equal(found.samples[0], relmax(network(), samples(5), A, k=2).samples)


def test_one_target_per_sample() -> None:
    targets = [0, 2, 1] * 3
    found = relmax(network(), samples(9), A.channels, target=targets, k=3)
    R = nrm.measure(network(), samples(9), target=targets)
    best = (R(A.channels) * R.value[:, None]).sort(0, descending=True).indices[:3].T
    assert torch.equal(found.samples, best)


def test_what_is_shown() -> None:
    found = relmax(network(), samples(), A.channels, k=2)
    lines = str(found).splitlines()
    assert lines[0] == "the best of 23 samples for 1.channels (weight 'logit')"
    assert lines[1].startswith(f"  0: {int(found.samples[0, 0])} (")
    assert len(lines) == 9
    assert "more blocks" in str(relmax(network(), samples(), A.channels, B.channels, k=2))
    assert isinstance(found, Maxima)


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    relmax(network(), samples(), A.channels, progress=True)
    assert "23" in capsys.readouterr().err
    relmax(network(), samples(), A.channels)
    assert capsys.readouterr().err == ""


ERRORS = [
    ("RelMax needs a concept", lambda m, x: relmax(m, x)),
    ("unknown weight", lambda m, x: relmax(m, x, A, weight="probability")),
    ("not a number of samples", lambda m, x: relmax(m, x, A, k=0)),
    ("batch_size=0", lambda m, x: relmax(m, x, A, batch_size=0)),
    ("no samples", lambda m, x: relmax(m, [], A)),
    ("not a data set", lambda m, x: relmax(m, {"x": x}, A)),
    ("not a data set", lambda m, x: relmax(m, 3, A)),
    (r"(?s)a loader gives batches.*loader\.dataset", lambda m, x: relmax(m, DataLoader(x, batch_size=1), A)),
    ("the sample has no label", lambda m, x: relmax(m, x, A, target="label")),
    ("targets and samples do not match", lambda m, x: relmax(m, x, A, target=[0] * 22)),
    ("unknown layer", lambda m, x: relmax(m, x, nrm.layer("nowhere"))),
    ("not a question", lambda m, x: relmax(m, x, "1")),
    ("probability of one class", lambda m, x: relmax(m, x, A, target="softmax", weight="softmax")),
    ("probability of one class", lambda m, x: relmax(m, x, A, output=lambda o: o[:, 0], weight="softmax")),
]


@pytest.mark.parametrize(("text", "call"), ERRORS, ids=[f"{k} {text}" for k, (text, _) in enumerate(ERRORS)])
def test_errors(text: str, call: object) -> None:
    with pytest.raises(nrm.NrmError, match=text):
        call(network(), samples())  # type: ignore[operator]


def test_an_error_names_its_samples() -> None:
    inputs = samples()
    inputs[13, 2] = float("nan")
    with pytest.raises(nrm.NrmError, match=r"(?s)sample 13.*NaN"):
        relmax(network(), inputs, A, batch_size=5)

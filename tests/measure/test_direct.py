"""Direct edges as users ask for them: found in networks of every kind, chosen by name, shown, averaged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
import vision


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).relu())


def small(**options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(4, 1)).double()
    return nrm.measure(model, torch.rand(2, 4).double(), **options)


def language(kind: str) -> tuple[nn.Module, int, int]:
    """A tiny language model, its heads in all layers, and its readers: queries, keys, values, perceptrons, output."""
    vision.load()
    import transformers

    torch.manual_seed(0)
    same = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
    if kind == "llama":
        config = transformers.LlamaConfig(
            **same, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2,
        )  # fmt: skip
        return transformers.LlamaForCausalLM(config), 8, 2 * (4 + 2 + 2 + 1) + 1
    if kind == "gpt2":
        config = transformers.GPT2Config(**same, n_embd=16, n_layer=2, n_head=4, n_positions=16)
        return transformers.GPT2LMHeadModel(config), 8, 2 * (12 + 1) + 1
    if kind == "gptj":
        config = transformers.GPTJConfig(**same, n_embd=16, n_layer=2, n_head=4, n_positions=16, rotary_dim=2)
        return transformers.GPTJForCausalLM(config), 8, 2 * (12 + 1) + 1
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4
    )
    return transformers.BertForSequenceClassification(config), 8, 2 * (12 + 1) + 1


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gptj", "bert"])
def test_language_models(kind: str) -> None:
    model, heads, readers = language(kind)
    ids, other = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[1, 7, 3, 9, 5]])
    R = nrm.measure(model.double().eval(), {"input_ids": ids}, against={"input_ids": other})
    edges = R.direct()
    kinds = [w.kind for w in edges.writers]
    assert (kinds.count("embedding"), kinds.count("head"), kinds.count("branch")) == (1, heads, 2)
    assert len(edges.readers) == readers
    torch.testing.assert_close(edges.relevance[:, :, -1].sum(1), torch.ones(1).double())
    along = R.direct(positions=True)
    torch.testing.assert_close(along.relevance.sum(-1), edges.relevance)


def test_residual_convolutions() -> None:
    torchvision = vision.load()
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=5).double().eval()
    x = torch.rand(2, 3, 32, 32).double()
    edges = nrm.measure(model, x, against=torch.zeros_like(x)).direct()
    assert edges.relevance.shape == (2, 9, 9)
    assert len(edges) == 45
    torch.testing.assert_close(edges.relevance[:, :, -1].sum(1), torch.ones(2).double())
    with pytest.raises(nrm.QuestionError, match="positions of the stream"):
        nrm.measure(model, x, against=torch.zeros_like(x)).direct(positions=True)


def test_chosen_by_name() -> None:
    R = small(against=torch.zeros(1, 4).double())
    whole, some = R.direct(), R.direct("?.down", ["output", whole_reader(R)])
    assert [str(w) for w in some.writers] == ["0.down", "1.down"]
    assert [str(r) for r in some.readers] == ["1.down", "output"]
    assert torch.equal(some.relevance, whole.relevance[:, 1:, 1:])
    with pytest.raises(nrm.QuestionError, match="no writer of the stream has this name"):
        R.direct("nobody")


def whole_reader(R: nrm.Measure) -> Any:
    return next(r for r in R.direct().readers if str(r) == "1.down")


def test_samples_units_and_tables() -> None:
    R = small(against=torch.zeros(1, 4).double())
    edges = R.direct()
    assert torch.equal(R.sample(1).direct().relevance, edges.relevance[1:])
    torch.testing.assert_close(edges.in_units()[:, :, -1].sum(1), R.value)
    assert edges.table()["relevance"].shape == (2, 3, 3)
    assert edges.table().labels["writer"] == ("input", "0.down", "1.down")
    writer, reader, share = edges.top(1)[0]
    assert share == pytest.approx(float(edges.relevance[0].flatten()[edges.relevance[0].abs().argmax()]))
    assert f"{writer} -> {reader}" in repr(edges)


def test_average_over_references() -> None:
    references = [torch.rand(1, 4).double() for _ in range(3)]
    R = small(against=references)
    parts = [one.direct() for one in R.contrasts]
    units = torch.stack([p.in_units() for p in parts]).mean(0)
    torch.testing.assert_close(R.direct().in_units(), units)
    torch.testing.assert_close(R.direct().relevance[:, :, -1].sum(1), torch.ones(2).double())


def test_without_a_stream() -> None:
    R = nrm.measure(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), torch.rand(1, 4), against="zeros")
    with pytest.raises(nrm.QuestionError, match="there is no residual stream"):
        R.direct()


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("positions", [False, True])
def test_a_plan_of_direct_edges_has_the_shape_of_the_table(kind: str, positions: bool) -> None:
    model, _, _ = language(kind)
    ids, other = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[1, 7, 3, 9, 5]])
    R = nrm.measure(model.double().eval(), {"input_ids": ids}, against={"input_ids": other})
    with pytest.raises(nrm.QuestionError, match="after the base sweep"):
        R.plan.direct()
    R(R.input)
    for ends in ({}, {"readers": "output"}, {"writers": ["*0*", "*1*"]}):
        plan, edges = R.plan.direct(**ends, positions=positions), R.direct(**ends, positions=positions)
        assert plan.shape == tuple(edges.relevance.shape)
        assert plan.nbytes == edges.relevance.nbytes
        assert dict(zip(plan.axes, plan.shape, strict=True)) == dict(
            zip(edges.table().axes["relevance"], plan.shape, strict=True)
        )
        assert plan.lines[-1].times == len(edges)
        assert plan.flops > 0
    assert R.plan.direct(readers="output").flops < R.plan.direct().flops
    with pytest.raises(nrm.QuestionError, match="no reader of the stream"):
        R.plan.direct(readers="nobody")
    with pytest.raises(nrm.QuestionError, match="no residual stream"):
        nrm.measure(nn.Linear(2, 2), torch.ones(1, 2)).plan.direct()


def test_direct_edges_of_a_difference() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(4, 2)).double()
    x, other = torch.rand(2, 2, 4).double()
    model[2].weight.data = torch.tensor([[1.0, -1.0, 0.5, 2.0], [-1.0, 0.5, 1.0, 0.5]]).double()
    first, second = (nrm.measure(model, x, against=other, target=c) for c in (0, 1))
    D = first - second
    edges = D.direct()
    one, two = first.direct(), second.direct()
    torch.testing.assert_close(edges.relevance, one.relevance - two.relevance)
    torch.testing.assert_close(edges.in_units(), one.in_units() - two.in_units())
    torch.testing.assert_close(edges.in_units()[:, :, -1].sum(1), edges.value)
    together = nrm.measure(model, x, against=other, output=lambda o: o[:, :1] - o[:, 1:]).direct()
    torch.testing.assert_close(edges.in_units(), together.in_units())
    assert len(edges) == len(one)
    plan = D.plan.direct()
    assert plan.shape == tuple(edges.relevance.shape)
    assert {line.what.partition(":")[0] for line in plan.lines} == {"first", "second"}
    plain = nrm.measure(model, x, target=0, bias="input") - nrm.measure(
        model, x, target=0, rules="lrp-0", bias="ignore"
    )
    with pytest.raises(nrm.QuestionError, match="other writers"):
        plain.direct()
    chosen = plain.direct(writers="input", readers="output")
    assert chosen.relevance.shape == (2, 1, 1)

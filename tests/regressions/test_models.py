"""Models of other libraries that were once refused or crashed, small and with random weights."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
import vision


def check_alone(model: nn.Module, inputs: dict[str, Tensor], **options: Any) -> None:
    """A batch gives every sample the measure that it has alone, and each can be trusted."""
    R = nrm.measure(model, inputs, target=1, **options)
    assert "can be trusted" in str(R.check())
    layer = R.inputs[0] if isinstance(R.inputs, list | tuple) else R.input
    together = R(layer)
    for k in range(len(R)):
        alone = nrm.measure(model, {name: t[k : k + 1] for name, t in inputs.items()}, target=1, **options)
        torch.testing.assert_close(together[k : k + 1], alone(alone.input), rtol=1e-6, atol=1e-8)


def test_longformer_with_and_without_global_attention() -> None:
    """Its sliding windows assign to slices that are empty for short inputs, and give einsum a list of operands."""
    transformers = pytest.importorskip("transformers")
    vision.load()
    config = transformers.LongformerConfig(
        attention_window=[4, 4], num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=32,
        vocab_size=50, max_position_embeddings=64, num_labels=3,
    )  # fmt: skip
    model = transformers.LongformerForSequenceClassification(config).double().eval()
    ids = torch.randint(3, 50, (2, 8))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    check_alone(model, inputs)
    check_alone(model, {**inputs, "global_attention_mask": (torch.arange(8) < 2).long().expand(2, 8)})


def test_xlnet_with_a_batch() -> None:
    """It turns its tokens so that positions come first: samples lie along the second axis of the embedding."""
    transformers = pytest.importorskip("transformers")
    vision.load()
    config = transformers.XLNetConfig(d_model=16, n_layer=2, n_head=2, d_inner=32, vocab_size=50, num_labels=3)
    model = transformers.XLNetForSequenceClassification(config).double().eval()
    ids = torch.randint(3, 50, (2, 7))
    check_alone(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    R = nrm.measure(model, {"input_ids": ids}, target=1)
    assert R(R.input).shape == (2, 7, 16)


class TimeFirst(nn.Module):
    """Tokens are turned, shifted and cut before they are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        """Classes from the mean over positions."""
        turned = (ids.long() + 1).clamp(max=19).transpose(0, 1).contiguous()[1:]
        looked_up: Tensor = self.embedding(turned).relu().mean(0)
        return self.head(looked_up)


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_tokens_that_are_turned_keep_their_samples(samples: int) -> None:
    model, ids = TimeFirst().double().eval(), torch.randint(0, 20, (samples, 6))
    check_alone(model, {"ids": ids})
    R = nrm.measure(model, ids, target=1)
    assert R(R.input).shape == (samples, 5, 6)


@pytest.mark.parametrize("nodes", [3, 7])
def test_sort_aggregation_with_a_batch_of_graphs(nodes: int) -> None:
    """Fills with a value below all of the batch, and replaces it again: nothing of other graphs is left."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pyg = pytest.importorskip("torch_geometric.nn")

    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.sort = pyg.GCNConv(4, 5), pyg.aggr.SortAggregation(nodes)
            self.head = nn.Linear(5 * nodes, 2)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
            return self.head(self.sort(self.conv(x, edge_index).relu(), batch))  # type: ignore[no-any-return]

    model = Sorted().double().eval()
    x, batch = torch.rand(7, 4, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 2, 2])
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [1, 2, 0, 4, 3, 6, 5]])
    R = nrm.measure(model, {"x": x, "edge_index": edges, "batch": batch}, target=1, rules="lrp-0", bias="input")
    assert "can be trusted" in str(R.check())
    variable = x.clone().requires_grad_()
    output = model(variable, edges, batch)[:, 1]
    (gradient,) = torch.autograd.grad(output.sum(), variable)
    per_node = R(R.input).sum(-1)
    expected = (x * gradient).sum(-1) / output.detach()[batch]
    torch.testing.assert_close(per_node[batch, torch.arange(7)], expected, rtol=1e-8, atol=1e-10)

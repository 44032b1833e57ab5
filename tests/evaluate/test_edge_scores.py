"""Scores of direct edges, beside derivatives of networks that are written out edge by edge."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
import vision
from nrm.evaluate.backward import GradientMethod, TrueGradient
from nrm.evaluate.gradients import StreamGradients
from nrm.evaluate.patching import PatchedPart
from nrm.measure.living import LivingEdges

with suppress(pytest.skip.Exception):
    vision.load()  # before transformers, which imports it

pytestmark = pytest.mark.filterwarnings("ignore:the predicted mass:nrm.NrmWarning")
GRADIENTS = ("eap", "eap-ig", "relp", "gim")


class Block(nn.Module):
    """A branch that is added to what it reads; ``after`` acts on the sum."""

    def __init__(self, after: nn.Module, act: nn.Module) -> None:
        super().__init__()
        self.up, self.act, self.down, self.after = nn.Linear(5, 8), act, nn.Linear(8, 5), after

    def branch(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(x + self.branch(x))


def blocks(after: Callable[[], nn.Module], act: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(after(), act()) for _ in range(3)), nn.Linear(5, 2)).double()


def two_runs(samples: int = 3) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x, y = torch.randn(2, samples, 5).double()
    return x, y


def contrast(model: nn.Module) -> nrm.Measure:
    x, y = two_runs()
    return nrm.measure(model, x, against=y, target=0)


def by_weights(model: nn.Sequential, x: Tensor, written: list[Tensor]) -> Tensor:
    """The derivative of the output by the weight of every edge, where ``written`` counts that many times in a reader.

    Every reader runs the stream again by itself, with each writer's share of it weighted by 1.
    """
    *layers, head = model
    weights = torch.ones(len(x), len(layers) + 1, len(layers) + 1).double().requires_grad_()
    parts = [x]
    for r in range(len(layers) + 1):

        def read(w: int, r: int = r) -> Tensor:
            return parts[w] + (weights[:, w, r, None] - 1) * written[w].detach()

        stream = read(0)
        for k, block in enumerate(layers[:r]):
            stream = block.after(stream + read(k + 1))
        if r < len(layers):
            parts.append(layers[r].branch(stream))
    (found,) = torch.autograd.grad(head(stream)[:, 0].sum(), weights)
    return found


def parts_of(model: nn.Sequential, x: Tensor) -> list[Tensor]:
    """The input, and what every branch adds."""
    found = [x]
    for block in list(model)[:-1]:
        found.append(block.branch(x))
        x = block(x)
    return found


STREAMS = [nn.Identity, nn.ReLU, nn.Softplus, lambda: nn.LayerNorm(5), lambda: nn.Linear(5, 5)]


@pytest.mark.parametrize("after", STREAMS)
@pytest.mark.parametrize("method", ["eap", "gradient x activation"])
def test_gradients_are_derivatives_by_the_weights_of_edges(after: Callable[[], nn.Module], method: str) -> None:
    model = blocks(after)
    here, there = (parts_of(model, x) for x in two_runs())
    written = here if method != "eap" else [a - b for a, b in zip(here, there, strict=True)]
    found = nrm.evaluate.edge_scores(contrast(model), method=method)
    torch.testing.assert_close(found.samples, by_weights(model, two_runs()[0], written))
    assert len(found.samples) == 3
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("after", STREAMS)
def test_averaged_gradients_of_the_lowest_writer_approach_the_difference(after: Callable[[], nn.Module]) -> None:
    R = contrast(blocks(after))
    edges = R.direct()

    def error(steps: int) -> Tensor:
        method = GradientMethod(TrueGradient, steps=steps)
        with torch.no_grad():
            table = StreamGradients(PatchedPart(R), edges.writers, edges.readers, method).scores()
        return (table[:, 0].sum(1) - edges.value).abs().max()  # all that the input does, through all its readers

    assert error(64) < 0.1 * edges.value.abs().max()
    if after is not nn.ReLU:  # with kinks it is not as regular
        assert error(64) < 0.6 * error(32) + 1e-9


def test_five_inputs_are_averaged() -> None:
    model = blocks(nn.Softplus)
    x, y = two_runs()
    delta = [a - b for a, b in zip(parts_of(model, x), parts_of(model, y), strict=True)]
    tables = [by_weights(model, y + k / 5 * (x - y), delta) for k in range(5)]
    found = nrm.evaluate.edge_scores(contrast(model), method="eap-ig")
    torch.testing.assert_close(found.samples, torch.stack(tables).mean(0))


def test_of_a_linear_network_all_of_them_are_the_contrast() -> None:
    R = contrast(blocks(lambda: nn.Linear(5, 5), nn.Identity))
    exact = nrm.evaluate.edge_scores(R, method="contrast").samples
    torch.testing.assert_close(exact[:, :, -1].sum(1), R.value)
    for method in GRADIENTS:
        torch.testing.assert_close(nrm.evaluate.edge_scores(R, method=method).samples, exact)


def test_activations_pass_their_quotient_in_relp() -> None:
    """With ReLU, whose derivative is its quotient, both agree; an activation at 0 has its derivative."""
    R = contrast(blocks(nn.Identity, nn.ReLU))
    one, other = (nrm.evaluate.edge_scores(R, method=m).samples for m in ("eap", "relp"))
    torch.testing.assert_close(one, other)
    model = blocks(nn.Identity)
    for block in list(model)[:-1]:
        block.up.weight.data.zero_()
        block.up.bias.data.zero_()
    R = contrast(model)
    one, other = (nrm.evaluate.edge_scores(R, method=m).samples for m in ("eap", "relp"))
    torch.testing.assert_close(one, other)


# ---- a Llama by hand -------------------------------------------------------------------------------------------------


class Hand:
    """The steps of a Llama, with true gradients."""

    def norm(self, module: Any, x: Tensor) -> Tensor:
        return module.weight * x * self.spread(x, module.variance_epsilon)

    def spread(self, x: Tensor, eps: float) -> Tensor:
        return (x.square().mean(-1, keepdim=True) + eps).rsqrt()

    def act(self, z: Tensor) -> Tensor:
        return nn.functional.silu(z)

    def gate(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    def softmax(self, a: Tensor) -> Tensor:
        return a.softmax(-1)


class HalfProduct(torch.autograd.Function):
    """A product whose factors get half of their gradients."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return slopes[0] * b / 2, slopes[0] * a / 2


class HalfMatmul(torch.autograd.Function):
    """A product of matrices whose factors get half of their gradients."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return slopes[0] @ b.mT / 2, a.mT @ slopes[0] / 2


class QuotientSilu(torch.autograd.Function):
    """SiLU, back by its quotient."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return nn.functional.silu(z)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        return slopes[0] * ctx.saved_tensors[0].sigmoid()


class WarmSoftmax(torch.autograd.Function):
    """A softmax, back by the Jacobian of the one of half the logits."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a.softmax(-1)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        p = (ctx.saved_tensors[0] / 2).softmax(-1)
        return p * (slopes[0] - (p * slopes[0]).sum(-1, keepdim=True))


class HandRelP(Hand):
    """Norms held, quotients, gates half and half."""

    def spread(self, x: Tensor, eps: float) -> Tensor:
        return super().spread(x, eps).detach()

    def act(self, z: Tensor) -> Tensor:
        return QuotientSilu.apply(z)

    def gate(self, a: Tensor, b: Tensor) -> Tensor:
        return HalfProduct.apply(a, b)


class HandGIM(HandRelP):
    """Norms held, all products half and half, a warm softmax, true activations."""

    def act(self, z: Tensor) -> Tensor:
        return nn.functional.silu(z)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return HalfMatmul.apply(a, b)

    def softmax(self, a: Tensor) -> Tensor:
        return WarmSoftmax.apply(a)


def llama_by_weights(
    model: Any, ids: Tensor, hand: Hand, written: dict[str, Tensor] | None, readers: list[str], explained: Any
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:  # fmt: skip
    """What writers write, and the gradient by every reader's own input of the stream, times ``written``."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    core, heads, groups = model.model, model.config.num_attention_heads, model.config.num_key_value_heads
    size = model.config.hidden_size // heads
    first = core.embed_tokens(ids)
    turn = core.rotary_emb(first, torch.arange(ids.shape[1])[None])
    taps = {reader: torch.zeros_like(first).requires_grad_() for reader in readers}
    wrote = {"model.embed_tokens": first}
    stream = first.detach()
    for n, layer in enumerate(core.layers):
        name, own = f"model.layers.{n}.self_attn", layer.self_attn

        def part(
            project: nn.Linear, word: str, h: int, x: Tensor = stream, name: str = name, layer: Any = layer
        ) -> Tensor:
            read = hand.norm(layer.input_layernorm, x + taps[f"{name}.{word}.head({h})"])
            return nn.functional.linear(read, project.weight[h * size : (h + 1) * size])[:, None]

        for h in range(heads):
            g = h * groups // heads
            query, key = apply_rotary_pos_emb(part(own.q_proj, "q", h), part(own.k_proj, "k", g), *turn)
            scores = hand.product(query, key.mT)[:, 0] / size**0.5
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
            mixed = hand.product(hand.softmax(scores), part(own.v_proj, "v", g)[:, 0])
            wrote[f"{name}.head({h})"] = mixed @ own.o_proj.weight[:, h * size : (h + 1) * size].T
        stream = stream + sum(wrote[f"{name}.head({h})"] for h in range(heads))
        name = f"model.layers.{n}.mlp"
        read = hand.norm(layer.post_attention_layernorm, stream + taps[name])
        wrote[name] = layer.mlp.down_proj(hand.gate(hand.act(layer.mlp.gate_proj(read)), layer.mlp.up_proj(read)))
        stream = stream + wrote[name]
    logits = model.lm_head(hand.norm(core.norm, stream + taps["output"]))
    slopes = torch.autograd.grad(explained(logits).sum(), list(taps.values()))
    return {name: t.detach() for name, t in wrote.items()}, dict(zip(taps, slopes, strict=True))


def llama() -> tuple[Any, nrm.tasks.Pairs]:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
        num_key_value_heads=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).double().eval()
    for parameter in model.parameters():  # attention that looks somewhere
        parameter.data *= 4 if parameter.ndim > 1 else 1
    items = []
    for n, length in enumerate((6, 8, 6)):
        clean = torch.randint(3, 40, (length,))
        corrupted = clean.clone()
        corrupted[2] = (clean[2] + 2) % 37 + 3
        items.append(nrm.tasks.TaskPair(clean, corrupted, (5 + n,), (20 + n,)))
    return model, nrm.tasks.Pairs(tuple(items), "drawn")


@pytest.mark.parametrize(("method", "hand"), [("eap", Hand()), ("relp", HandRelP()), ("gim", HandGIM())])
def test_a_llama_has_the_gradients_of_the_one_written_out(method: str, hand: Hand) -> None:
    model, pairs = llama()
    found = nrm.evaluate.edge_scores(model, pairs, method)
    names = [str(r) for r in found.readers]
    for n, pair in enumerate(pairs):
        (batch,) = pairs.take([n]).by_length()
        here, slopes = llama_by_weights(model, pair.clean[None], hand, None, names, batch.odds)
        there, _ = llama_by_weights(model, pair.corrupted[None], hand, None, names, batch.odds)
        expected = torch.tensor(
            [[float(((here[str(w)] - there[str(w)]) * slopes[name]).sum()) for name in names] for w in found.writers]
        ).double()
        exists = torch.tensor([[w.crossing <= r.crossing for r in found.readers] for w in found.writers])
        size = float(expected.abs().max())
        # the model computes norms in float32
        torch.testing.assert_close(found.samples[n], expected * exists, rtol=1e-4, atol=1e-5 * size)
        assert size > 1e-3


def test_pairs_keep_their_order_and_their_scores() -> None:
    model, pairs = llama()
    for method in ("random", "eap", "clean run"):
        together = nrm.evaluate.edge_scores(model, pairs, method, seed=3)
        for n in (1, 2):  # they are measured in another order: by length
            alone = nrm.evaluate.edge_scores(model, pairs.take([n]), method, seed=3)
            torch.testing.assert_close(together.samples[n], alone.samples[0], rtol=1e-4, atol=1e-7)
            torch.testing.assert_close(together.value[n], alone.value[0])


# ---- the other methods -----------------------------------------------------------------------------------------------


def test_a_contrast_and_the_clean_run_alone_are_their_direct_edges() -> None:
    model, pairs = llama()
    (batch,) = pairs.take([0, 2]).by_length()
    edges = nrm.measure(model, batch.clean, against=batch.corrupted, output=batch.odds).direct()
    found = nrm.evaluate.edge_scores(model, pairs.take([0, 2]), "contrast")
    torch.testing.assert_close(found.values, edges.in_units().mean(0))
    torch.testing.assert_close(found.value, edges.value, rtol=1e-6, atol=1e-9)
    alone = nrm.measure(model, batch.clean, output=batch.odds, rules="transformer").direct()
    clean = nrm.evaluate.edge_scores(model, pairs.take([0, 2]), "clean run")
    known = [n for n, r in enumerate(clean.readers) if str(r) in set(map(str, alone.readers))]
    assert [str(clean.readers[n]) for n in known] == list(map(str, alone.readers))  # values, as attention is held
    torch.testing.assert_close(clean.values[:, known], alone.in_units().mean(0))
    assert float(clean.values.abs().sum()) == pytest.approx(float(clean.values[:, known].abs().sum()))


def test_biases_of_the_clean_run_are_left_out() -> None:
    model = blocks(nn.Identity)
    torch.manual_seed(1)
    pairs = nrm.tasks.Pairs.of(*torch.randn(2, 4, 5).double(), answers=[0] * 4, wrong=[1] * 4)
    plain = nrm.measure(model, torch.stack([p.clean for p in pairs]), rules="transformer",
                        output=lambda out: out[:, 0] - out[:, 1]).direct()  # fmt: skip
    found = nrm.evaluate.edge_scores(model, pairs, "clean run")
    named = {str(w): n for n, w in enumerate(plain.writers)}
    rows = [named[str(w)] for w in found.writers]
    torch.testing.assert_close(found.values, plain.in_units().mean(0)[rows])


def test_differences_have_their_lengths_and_random_scores_their_seed() -> None:
    model = blocks(nn.ReLU)
    R = contrast(model)
    here, there = (parts_of(model, x) for x in two_runs())
    found = nrm.evaluate.edge_scores(R, method="activation difference")
    for w, (a, b) in enumerate(zip(here, there, strict=True)):
        torch.testing.assert_close(found.samples[:, w, -1], (a - b).norm(dim=1))
    one, other, again = (nrm.evaluate.edge_scores(R, method="random", seed=s).values for s in (0, 1, 0))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


# ---- circuits --------------------------------------------------------------------------------------------------------


def test_circuits_are_chosen_as_those_of_a_measure() -> None:
    model, pairs = llama()
    (batch,) = pairs.take([0, 2]).by_length()
    R = nrm.measure(model, batch.clean, against=batch.corrupted, output=batch.odds)
    found = nrm.evaluate.edge_scores(R)
    for top in (5, 0.1, 0.5):
        assert found.circuit(top) == R.circuit(top=top)
    for method in GRADIENTS:
        for circuit, share in zip(
            nrm.evaluate.edge_scores(R, method=method).circuits((0.1, 0.3)), (0.1, 0.3), strict=True
        ):
            assert len(circuit) <= round(share * circuit.possible)
            assert float(R.circuit(edges=circuit).mass or 0) != 0  # walks get through


def thinned(living: LivingEdges, inside: Tensor, number: int, order: list[int]) -> Tensor:
    """The last edges go one by one, unless nothing would be left."""
    for at in reversed(order):
        if int(inside.sum()) <= number:
            break
        if inside.flatten()[at]:
            without = inside.flatten().clone()
            without[at] = False
            fewer = living.of(without.view(inside.shape))
            inside = fewer if bool(fewer.any()) else inside
    return inside


def test_dead_edges_make_room_for_further_ones() -> None:
    model, pairs = llama()
    scores = nrm.evaluate.edge_scores(model, pairs, "random")
    exists = torch.tensor([[w.crossing <= r.crossing for r in scores.readers] for w in scores.writers])
    living = LivingEdges(scores.writers, scores.readers, exists, plain=False)
    torch.manual_seed(0)
    for draw in range(8):
        keys = torch.rand(exists.shape)
        keys[0] *= 0.01 if draw % 2 else 1.0  # ways begin late
        order = keys.masked_fill(~exists, -1).flatten().argsort(descending=True, stable=True).tolist()
        for number in (1, 4, 30):
            found, before = living.best(number, keys), torch.zeros_like(exists)
            for at in order[: int(exists.sum())]:
                marks = before.flatten().clone()
                marks[at] = True
                alive = living.of(marks.view(exists.shape))
                if int(alive.sum()) > number:
                    break
                before = marks.view(exists.shape)
            expected = living.of(before)
            expected = expected if bool(expected.any()) else thinned(living, alive, number, order)
            if int(expected.sum()) <= number:
                assert torch.equal(found, expected)
            assert 0 < int(found.sum()) <= number
            assert torch.equal(living.of(found), found)


def test_signed_scores_take_what_argues_for_the_difference() -> None:
    R = contrast(blocks(nn.Identity))
    found = nrm.evaluate.edge_scores(R)
    for_it = found.values * found.value.sum().sign()
    inside = found.circuit(4, signed=True).inside
    assert for_it[inside].min() >= 0
    assert (found.values[found.circuit(4).inside].abs().sum()) >= found.values[inside].abs().sum()


def test_nodes_have_the_sums_of_their_edges() -> None:
    found = nrm.evaluate.edge_scores(contrast(blocks(nn.Identity)), method="eap")
    assert list(found.nodes) == [str(w) for w in found.writers]
    assert sum(found.nodes.values()) == pytest.approx(float(found.values.sum()))
    assert found.table()["score"].shape == (3, 4, 4)
    assert "eap: scores of 10 direct edges, mean of 3 samples" in repr(found)


def test_what_has_no_scores_is_refused() -> None:
    model = blocks(nn.Identity)
    R, (_, pairs) = contrast(model), llama()
    plain = nrm.measure(model, torch.ones(1, 5).double())
    chain = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: nrm.evaluate.edge_scores(R, method="EAP-IP"), "'eap-ig'"),
        (lambda: nrm.evaluate.edge_scores(R, method="saliency"), "activation difference, gradient x activation, eap"),
        (lambda: nrm.evaluate.edge_scores(plain, method="eap"), "two runs"),
        (lambda: nrm.evaluate.edge_scores(contrast(chain), method="eap"), "no residual stream"),
        (lambda: nrm.evaluate.edge_scores(R, method="clean run"), "model and pairs"),
        (lambda: nrm.evaluate.edge_scores(R, pairs), "inputs already"),
        (lambda: nrm.evaluate.edge_scores(model), "pairs"),
        (lambda: nrm.evaluate.edge_scores("model", pairs), "neither"),
        (lambda: nrm.evaluate.edge_scores(model, pairs, batch_size=0), "batch_size"),
        (lambda: nrm.evaluate.edge_scores(R).circuit(0), "top=0"),
        (lambda: nrm.evaluate.edge_scores(R).circuit(1.5), "top=1.5"),
    ]
    for call, words in cases:
        with pytest.raises(nrm.NrmError, match=words):
            call()

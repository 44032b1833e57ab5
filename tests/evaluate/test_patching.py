"""Patched circuits and nodes, beside networks that are written out edge by edge and hooks on the user's own model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
import vision

with suppress(pytest.skip.Exception):
    vision.load()  # before transformers, which imports it

pytestmark = pytest.mark.filterwarnings("ignore:the predicted mass:nrm.NrmWarning", "ignore:the model fails")
SIZE = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}


class Block(nn.Module):
    """A branch that is added to what it reads; ``after`` acts on the sum."""

    def __init__(self, after: nn.Module, skip: float = 1.0) -> None:
        super().__init__()
        self.skip = skip
        width = next((p.shape[-1] for p in after.parameters() if p.ndim == 2), 5)
        self.up, self.down, self.after = nn.Linear(width, 8), nn.Linear(8, width), after

    def branch(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(torch.add(self.branch(x), x, alpha=self.skip))


def blocks(after: Callable[[], nn.Module], depth: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(after()) for _ in range(depth)), nn.Linear(5, 2)).double()


def fading() -> nn.Sequential:
    """A stream of which every sum keeps half."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block(nn.Identity(), 0.5) for _ in range(3)), nn.Linear(5, 2)).double()


def narrowing() -> nn.Sequential:
    """A stream that is not equally wide everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block(nn.Linear(n, m)) for n, m in ((5, 7), (7, 4), (4, 3))), nn.Linear(3, 2)).double()


def contrast(model: nn.Module, samples: int = 3) -> nrm.Measure:
    torch.manual_seed(1)
    x, y = torch.randn(2, samples, 5).double()
    return nrm.measure(model, x, against=y, target=0)


def marks(R: nrm.Measure, count: int, share: float = 0.5, positions: bool = False) -> list[nrm.Circuit]:
    """Random circuits of a measure."""
    torch.manual_seed(2)
    edges = R.direct(positions=positions)
    exists = torch.tensor([[w.crossing <= r.crossing for r in edges.readers] for w in edges.writers])
    exists = exists.view(*exists.shape, *(1,) * positions)
    drawn = [exists & (torch.rand(edges.relevance.shape[1:]) < share) for _ in range(count)]
    return [R.circuit(edges=some, positions=positions) for some in drawn]


def written_out(model: nn.Sequential, x: Tensor, y: Tensor, inside: Tensor, outside: list[Tensor]) -> Tensor:
    """The patched network, reader by reader: the stream is run again for each, by its skip alone."""
    parts = [x]
    *layers, head = model
    for r in range(len(layers) + 1):
        stream = torch.where(inside[0, r], parts[0], outside[0])
        for k, block in enumerate(layers[:r]):
            stream = block.after(block.skip * stream + torch.where(inside[k + 1, r], parts[k + 1], outside[k + 1]))
        if r < len(layers):
            parts.append(layers[r].branch(stream))
    return head(stream)[:, 0]


def runs_of(model: nn.Sequential, x: Tensor) -> list[Tensor]:
    """The input, and what every branch adds."""
    found = [x]
    for block in list(model)[:-1]:
        found.append(block.branch(x))
        x = block(x)
    return found


@pytest.mark.parametrize(
    "made",
    [
        lambda: blocks(nn.Identity), lambda: blocks(nn.ReLU), lambda: blocks(lambda: nn.LayerNorm(5)),
        lambda: blocks(lambda: nn.Linear(5, 5)), narrowing, fading,
    ],
    ids=["sums", "relu", "norm", "linear", "narrowing", "fading"],
)  # fmt: skip
@pytest.mark.parametrize("outside", ["reference", "zero", "mean"])
def test_a_patched_network_is_the_one_written_out(made: Callable[[], nn.Sequential], outside: str) -> None:
    model = made()
    R = contrast(model)
    x, y = (run.nodes[run.inputs[0]].value for run in R.inner.tape.runs or ())
    there = {
        "reference": runs_of(model, y), "zero": [torch.zeros_like(part) for part in runs_of(model, x)],
        "mean": [part.mean(0, keepdim=True) for part in runs_of(model, x)],
    }[outside]  # fmt: skip
    circuits = marks(R, 6)
    curve = nrm.evaluate.patch(R, circuits, outside=outside)
    with torch.no_grad():
        nothing = written_out(model, x, y, torch.zeros(4, 4, dtype=torch.bool), there)
        for circuit, found in zip(sorted(circuits, key=len), curve.circuits, strict=True):
            expected = written_out(model, x, y, circuit.inside, there)
            torch.testing.assert_close(found.values, expected)
            torch.testing.assert_close(found.corrupted, nothing)
            torch.testing.assert_close(found.clean, model(x)[:, 0])
            assert found.size == len(circuit)


def test_circuits_together_are_circuits_alone() -> None:
    R = contrast(blocks(nn.ReLU))
    circuits = marks(R, 4)
    curve = nrm.evaluate.patch(R, circuits)
    for circuit, found in zip(sorted(circuits, key=len), curve.circuits, strict=True):
        alone = nrm.evaluate.patch(R, circuit)
        torch.testing.assert_close(alone.values, found.values)
        assert alone.mass == pytest.approx(circuit.mass)
        assert alone.f == pytest.approx(found.f)


def test_of_a_linear_network_the_mass_is_what_comes_back() -> None:
    model = blocks(nn.Identity)
    for block in list(model)[:-1]:
        block.branch = block.down.forward  # type: ignore[method-assign, assignment]
        block.down = nn.Linear(5, 5).double()
        block.branch = block.down.forward
    R = contrast(model)
    for circuit in marks(R, 4):
        found = nrm.evaluate.patch(R, circuit)
        torch.testing.assert_close(found.shares, found.masses)
        assert abs(found.f - 1) > 1e-3


# ---- language models -------------------------------------------------------------------------------------------------


def language_model(kind: str, **more: Any) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SIZE, **more})
    name = {"Bert": "BertForMaskedLM", "GPT2": "GPT2LMHeadModel"}.get(kind, f"{kind}ForCausalLM")
    model = getattr(transformers, name)(config).double().eval()
    for parameter in model.parameters():  # attention that looks somewhere
        parameter.data *= 3 if parameter.ndim > 1 else 1
    return model


def task(lengths: tuple[int, ...] = (6, 6, 6), vocabulary: int = 40) -> nrm.tasks.Pairs:
    torch.manual_seed(3)
    items = []
    for n, length in enumerate(lengths):
        clean = torch.randint(3, vocabulary, (length,))
        corrupted = clean.clone()
        corrupted[2] = (clean[2] + 5 - 3) % (vocabulary - 3) + 3
        items.append(nrm.tasks.TaskPair(clean, corrupted, (5 + n,), (20 + n,)))
    return nrm.tasks.Pairs(tuple(items), "drawn")


def odds(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids).logits[:, -1]
    rows = torch.arange(len(ids))
    return logits[rows, 5 + rows] - logits[rows, 20 + rows]


def llama_by_edges(model: Any, clean: Tensor, corrupted: Tensor, inside: dict[tuple[str, str], Tensor]) -> Tensor:
    """A Llama in which every query, key, value, branch and the logits read a stream of their own."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    core, heads, groups = model.model, model.config.num_attention_heads, model.config.num_key_value_heads
    size = model.config.hidden_size // heads
    places = torch.arange(clean.shape[1])[None]
    turn = core.rotary_emb(core.embed_tokens(clean), places)
    written: dict[str, tuple[Tensor, Tensor]] = {}  # in the patched run, and outside

    def stream(reader: str) -> Tensor:
        parts = (torch.where(inside[w, reader].view(1, -1, 1), *both) for w, both in written.items())
        return sum(parts, torch.zeros(()))

    def heads_of(layer: Any, q: list[Tensor], k: list[Tensor], v: list[Tensor]) -> list[Tensor]:
        norm, own = layer.input_layernorm, layer.self_attn

        def part(project: nn.Linear, x: Tensor, h: int) -> Tensor:
            return project(norm(x))[..., h * size : (h + 1) * size][:, None]

        keys = [part(own.k_proj, k[g], g) for g in range(groups)]
        values = [part(own.v_proj, v[g], g) for g in range(groups)]
        found = []
        for h in range(heads):
            g = h * groups // heads
            query, key = apply_rotary_pos_emb(part(own.q_proj, q[h], h), keys[g], *turn)
            scores = (query @ key.mT / size**0.5)[:, 0]
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
            weight = own.o_proj.weight[:, h * size : (h + 1) * size]
            found.append(scores.softmax(-1) @ values[g][:, 0] @ weight.T)
        return found

    away = core.embed_tokens(corrupted)
    written["model.embed_tokens"] = core.embed_tokens(clean), away
    for n, layer in enumerate(core.layers):
        name = f"model.layers.{n}.self_attn"
        one = heads_of(
            layer, [stream(f"{name}.q.head({h})") for h in range(heads)],
            [stream(f"{name}.k.head({g})") for g in range(groups)],
            [stream(f"{name}.v.head({g})") for g in range(groups)],
        )  # fmt: skip
        other = heads_of(layer, [away] * heads, [away] * groups, [away] * groups)
        away = away + sum(other)
        written |= {f"{name}.head({h})": (one[h], other[h]) for h in range(heads)}
        name = f"model.layers.{n}.mlp"
        both = [layer.mlp(layer.post_attention_layernorm(x)) for x in (stream(name), away)]
        away = away + both[1]
        written[name] = both[0], both[1]
    logits = model.lm_head(core.norm(stream("output")))[:, -1]
    rows = torch.arange(len(clean))
    return logits[rows, 5 + rows] - logits[rows, 20 + rows]


@pytest.mark.parametrize("positions", [False, True])
def test_a_patched_llama_is_the_one_written_out(positions: bool) -> None:
    model, pairs = language_model("Llama", num_key_value_heads=2), task()
    (batch,) = pairs.by_length()
    R = nrm.measure(model, batch.clean, against=batch.corrupted, output=batch.odds)
    circuits = marks(R, 3, 0.6, positions)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    curve = nrm.evaluate.patch(model, circuits, pairs)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    for circuit, found in zip(sorted(circuits, key=len), curve.circuits, strict=True):
        edges = {
            (str(w), str(r)): circuit.inside[i, j]
            for i, w in enumerate(circuit.writers)
            for j, r in enumerate(circuit.readers)
        }
        with torch.no_grad():
            expected = llama_by_edges(model, batch.clean, batch.corrupted, edges)
        torch.testing.assert_close(found.values, expected)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("Llama", {"num_key_value_heads": 2}),
        ("GPT2", {}),
        ("GPTNeoX", {"use_parallel_residual": True}),
        ("Bert", {"pad_token_id": 0}),
        ("Gemma2", {"num_key_value_heads": 2, "head_dim": 4}),
    ],
)
def test_everything_inside_is_the_clean_run_and_nothing_inside_the_corrupted_one(kind: str, more: Any) -> None:
    if kind == "GPT2":
        more = {"n_embd": 16, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 1}
    model, pairs = language_model(kind, **more), task()
    (batch,) = pairs.by_length()
    R = nrm.measure(model, batch.clean, against=batch.corrupted, output=batch.odds)
    every = R.circuit(top=1.0)
    found = nrm.evaluate.patch(R, every)
    with torch.no_grad():
        torch.testing.assert_close(found.values, odds(model, batch.clean))
        torch.testing.assert_close(found.corrupted, odds(model, batch.corrupted))
    assert found.f == pytest.approx(1)
    one = R.circuit(top=1)  # hardly anything is inside
    assert abs(nrm.evaluate.patch(R, one).f) < 0.9


@pytest.mark.parametrize("direction", ["noise", "denoise"])
def test_patched_nodes_are_hooks_on_the_model(direction: str) -> None:
    model, pairs = language_model("Llama", num_key_value_heads=2), task()
    (batch,) = pairs.by_length()
    found = nrm.evaluate.patch_nodes(model, pairs, direction=direction)
    assert len(found) == 1 + 2 * 5
    into, other = (batch.clean, batch.corrupted) if direction == "noise" else (batch.corrupted, batch.clean)
    with torch.no_grad():
        gap = odds(model, batch.clean) - odds(model, batch.corrupted)
        for name in found.nodes:
            value = _hooked(model, name, into, other)
            effect = odds(model, batch.clean) - value if direction == "noise" else value - odds(model, batch.corrupted)
            # in units of the output: norms and rotary angles of the model are in float32, and the gap is small
            assert found[name] * float(gap.sum()) == pytest.approx(float(effect.sum()), abs=1e-6)
    assert abs(found.correlation) <= 1


def _hooked(model: Any, name: str, into: Tensor, other: Tensor) -> Tensor:
    """The explained output, with what a node writes taken from another input, by a hook on its module."""
    path, _, head = name.partition(".head(")
    module = model.get_submodule(f"{path}.o_proj" if head else path)
    kept: list[Tensor] = []
    if head:
        part = slice(4 * int(head[:-1]), 4 * int(head[:-1]) + 4)

        def keep(module: nn.Module, args: Any) -> None:
            kept.append(args[0].clone())

        def put(module: nn.Module, args: Any) -> Any:
            mixed = args[0].clone()
            mixed[..., part] = kept[0][..., part]
            return (mixed,)

        handles = module.register_forward_pre_hook(keep)
        model(other)
        handles.remove()
        handles = module.register_forward_pre_hook(put)
    else:
        handles = module.register_forward_hook(lambda module, args, out: kept.append(out.clone()))
        model(other)
        handles.remove()
        handles = module.register_forward_hook(lambda module, args, out: kept[0])
    found = odds(model, into)
    handles.remove()
    return found


def test_pairs_of_several_lengths_are_one_task() -> None:
    model, pairs = language_model("Llama", num_key_value_heads=2), task((6, 8, 6))
    found = nrm.circuit(model, pairs, top=0.3, draws=0)
    whole = nrm.evaluate.patch(model, found, pairs)
    assert len(whole.values) == 3
    assert whole.mass == pytest.approx(found.circuit.mass)
    mean = nrm.evaluate.patch(model, found, pairs, outside="mean")
    assert mean.f != pytest.approx(whole.f)
    other = nrm.evaluate.patch(model, found, pairs.take([0, 2]), outside="mean", data=pairs)
    torch.testing.assert_close(other.values, mean.values[[0, 1]])


def test_curves_have_their_areas() -> None:
    R = contrast(blocks(nn.ReLU))
    curve = nrm.evaluate.patch(R, [R.circuit(top=k) for k in (1, 3, 6, 10)])
    assert list(curve.sizes) == sorted(curve.sizes)
    x = torch.tensor(curve.sizes).double()
    f = torch.tensor(curve.f).double()
    steps = x.diff()
    assert curve.cpr == pytest.approx(float((steps * (f[1:] + f[:-1]) / 2).sum()))
    far = (1 - f).abs()
    assert curve.cmd == pytest.approx(float((steps * (far[1:] + far[:-1]) / 2).sum()))
    logs = x.log().diff()
    assert curve.log_cmd == pytest.approx(float((logs * (far[1:] + far[:-1]) / 2).sum() / logs.sum()))
    assert f"log-CMD {curve.log_cmd:.3f}" in repr(curve)
    assert curve.table()["f"].shape == (4,)


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_what_cannot_be_patched_is_refused() -> None:
    model = blocks(nn.Identity)
    R = contrast(model)
    C = R.circuit(top=3)
    plain = nrm.measure(model, torch.ones(1, 5).double())
    chain = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: nrm.evaluate.patch(plain, C), "two runs"),
        (lambda: nrm.evaluate.patch(contrast(chain), C), "no residual stream"),
        (lambda: nrm.evaluate.patch(contrast(blocks(nn.Identity, 2)), C), "other|another"),
        (lambda: nrm.evaluate.patch(R, "C"), "no circuit"),
        (lambda: nrm.evaluate.patch(R, []), "no circuit"),
        (lambda: nrm.evaluate.patch(R, C - C), "empty"),
        (lambda: nrm.evaluate.patch(R, C, outside="noise"), "outside='noise'"),
        (lambda: nrm.evaluate.patch(model, C), "pairs"),
        (lambda: nrm.evaluate.patch(R, C, task()), "inputs already"),
        (lambda: nrm.evaluate.patch("model", C), "neither"),
        (lambda: nrm.evaluate.patch_nodes(R, direction="up"), "direction='up'"),
        (lambda: nrm.evaluate.patch_nodes(R, nodes="nobody"), "no node"),
        (lambda: nrm.evaluate.patch_nodes(R)["nobody"], "no node"),
    ]
    for call, words in cases:
        with pytest.raises(nrm.NrmError, match=words):
            call()

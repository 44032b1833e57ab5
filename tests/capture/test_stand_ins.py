"""What stands in for compiled code and offloaded weights while a call is recorded, and that all of it is put back."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.devices import home_of

X = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
ignored = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the imports of compilers and of accelerate
    pytest.mark.filterwarnings("ignore::nrm.NrmWarning"),
]
pytestmark = ignored


class Block(nn.Module):
    """Attention with packed weights, a norm and a parameter that is added: tensors that are used in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.places = nn.Parameter(torch.randn(1, 3, 8))
        self.fails: type[BaseException] | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places
        x = x + self.attention(x, x, x)[0]
        if self.fails is not None:
            raise self.fails("on the way")
        return self.norm(x)


class Net(nn.Module):
    """Two blocks, a convolution over positions, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.mix = nn.Conv1d(8, 4, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.mix(x.mT).relu().flatten(1))


def net(dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(0)
    return Net().eval().to(dtype)


def everything(model: nn.Module) -> list[Any]:
    """All that a module refers to: its attributes, tensors and hooks, and what hooks of accelerate load from where."""
    found: list[Any] = []
    for module in model.modules():
        for name, value in vars(module).items():
            inner = [(k, id(v)) for k, v in value.items()] if isinstance(value, dict) else []
            found.append((name, value if isinstance(value, bool) else id(value), inner))
        hook = getattr(module, "_hf_hook", None)
        found += [(hook.offload, id(hook.weights_map))] if hasattr(hook, "weights_map") else []
    return found


class Counted(Mapping[str, Tensor]):
    """Weights that were offloaded, with what was read of them, and which of it is still there."""

    def __init__(self, within: Any, reads: Counter[str], there: list[Any]) -> None:
        self.within, self.reads, self.there = within, reads, there

    def __getitem__(self, key: str) -> Tensor:
        value: Tensor = self.within[key]
        self.reads[f"{self.within.prefix}{key}"] += 1
        self.there.append(ref(value))
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.within)

    def __len__(self) -> int:
        return len(self.within)


def offload(model: nn.Module, where: Path | None, **options: Any) -> tuple[nn.Module, Counter[str], list[Any]]:
    """The model with its weights on disk, or in memory that is not the model's; what is read of them."""
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    preload = {"preload_module_classes": ["MultiheadAttention"], "execution_device": torch.device("cpu"), **options}
    if where is None:
        model = accelerate.cpu_offload(model, **preload)
    else:
        model = accelerate.disk_offload(model, where, **preload)
    reads: Counter[str] = Counter()
    there: list[Any] = []
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)
        for one in getattr(hook, "hooks", (hook,)):
            if getattr(one, "weights_map", None) is not None:
                one.weights_map = Counted(one.weights_map, reads, there)
    return model, reads, there


def matrices(reads: Counter[str]) -> set[int]:
    """How often matrices were read; that of attention is used in three parts, each on its own, for its projections."""
    return {
        -(-count // 3) if "in_proj" in name else count
        for name, count in reads.items()
        if name.endswith("weight") and "norm" not in name
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("disk", [True, False])
def test_offloaded_weights_are_read_once_in_every_sweep_and_dropped(
    disk: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    plain = net(dtype)
    model, reads, there = offload(copy.deepcopy(plain), tmp_path if disk else None)
    assert all(p.is_meta for p in model.parameters())
    assert home_of(model) == torch.device("cpu")
    before = everything(model)
    wanted, R = nrm.measure(plain, X), nrm.measure(model, X)
    assert "offloaded" in repr(R)
    assert everything(model) == before
    assert set(reads) == {name for name, _ in plain.named_parameters()}
    assert matrices(reads) == {1}
    reads.clear()
    torch.testing.assert_close(R(R.input), wanted(wanted.input), rtol=0, atol=1e-6)
    assert set(reads.values()) == {1}
    assert not disk or not any(one() is not None for one in there)
    pairs, wanted_pairs = (M(M["blocks.0"].positions, M["blocks.1"].channels) for M in (R, wanted))
    torch.testing.assert_close(pairs, wanted_pairs, rtol=1e-5, atol=1e-5)
    assert R.check().ok
    assert everything(model) == before
    with torch.no_grad():
        torch.testing.assert_close(model(X.to(dtype)), plain(X.to(dtype)))


def test_a_model_that_is_partly_offloaded(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    plain, x = net(torch.float64), X.double()
    places = {"blocks.0": "cpu", "blocks.1": "disk", "mix": "disk", "head": "cpu"}
    model = accelerate.dispatch_model(
        copy.deepcopy(plain), places, main_device="cpu", offload_dir=tmp_path, force_hooks=True,
        preload_module_classes=["MultiheadAttention"],
    )  # fmt: skip
    assert {p.device.type for p in model.parameters()} == {"cpu", "meta"}
    wanted, R = (nrm.measure(m, x, against=x.roll(1, 1)) for m in (plain, model))
    torch.testing.assert_close(R(R["blocks.1"]), wanted(wanted["blocks.1"]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("disk", [True, False])
def test_a_contrast_reads_offloaded_weights_once_in_every_run(disk: bool, tmp_path: Path) -> None:
    """That both runs had the same weights is known without reading them again."""
    plain, x = net(torch.float64), X.double()
    model, reads, _ = offload(copy.deepcopy(plain), tmp_path if disk else None)
    R, wanted = (nrm.measure(m, x, against=x.roll(1, 1)) for m in (model, plain))
    assert matrices(reads) == {2}
    torch.testing.assert_close(R(R.input), wanted(wanted.input), rtol=0, atol=1e-6)


def test_values_that_are_computed_again_read_the_weights_of_their_block(tmp_path: Path) -> None:
    plain = net()
    model, reads, there = offload(copy.deepcopy(plain), tmp_path)
    R, wanted = nrm.measure(model, X, memory=2000), nrm.measure(plain, X)
    assert "computed again" in repr(R)
    torch.testing.assert_close(R(R.input), wanted(wanted.input), rtol=0, atol=1e-6)
    assert not any(one() is not None for one in there)
    assert max(matrices(reads)) <= 3  # the pass, the block once more, and the sweep


def test_weights_that_are_gone_are_missed(tmp_path: Path) -> None:
    model, _, _ = offload(net(), tmp_path)
    R = nrm.measure(model, X)
    for file in tmp_path.glob("*.dat"):
        file.unlink()
    with pytest.raises(nrm.CaptureError, match=r"an offloaded weight cannot be read") as found:
        R(R.input)
    assert "head.weight" in str(found.value)


def compiled(model: Net) -> nn.Module:
    """Compiled in all the ways that there are, each somewhere."""
    model.blocks[0] = torch.compile(model.blocks[0], backend="eager")  # type: ignore[assignment]
    model.blocks[1].attention = torch.compile(model.blocks[1].attention, backend="eager")  # type: ignore[assignment]
    model.mix.compile(backend="eager")
    model.head.forward = torch.compile(model.head.forward, backend="eager")  # type: ignore[method-assign]
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


def test_compiled_parts_are_explained_as_what_is_inside() -> None:
    plain, model = net(), compiled(net())
    before = everything(model)
    R, wanted = nrm.measure(model, X), nrm.measure(plain, X)
    assert "compiled code is run as it was written" in repr(R)
    assert "compiled" not in repr(wanted)
    assert [layer.name for layer in R.layers] == [layer.name for layer in wanted.layers]
    assert torch.equal(R(R.input), wanted(wanted.input))
    assert everything(model) == before
    with torch.no_grad():
        torch.testing.assert_close(model(X), plain(X))


KINDS: dict[str, Callable[[Net, Path], nn.Module]] = {
    "plain": lambda model, _: model,
    "half": lambda model, _: model.bfloat16(),
    "compiled": lambda model, _: compiled(model),
    "offloaded": lambda model, folder: offload(model, folder)[0],
}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_or_an_interrupt_leaves_the_model_as_it_was(
    kind: str, error: type[BaseException], tmp_path: Path
) -> None:
    written = net()
    last = written.blocks[1]
    model = KINDS[kind](written, tmp_path)
    last.fails = error
    before = everything(model)
    hooks = nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks
    with pytest.raises(error, match="on the way"):
        nrm.measure(model, X)
    assert everything(model) == before
    assert not any(hooks)
    last.fails = None
    assert nrm.measure(model, X).check().ok

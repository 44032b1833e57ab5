"""Ctrl-C anywhere, in the capture, the sweep or an estimate, leaves the model as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import nrm
import vision
from laws.test_trace import no_trace

with suppress(pytest.skip.Exception):
    vision.load()  # before transformers, which imports it

SIZE = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 32}  # fmt: skip
IDS = torch.randint(3, 50, (1, 9), generator=torch.Generator().manual_seed(0))
OTHER = (IDS + 7) % 50
TIGHT = 64 * 2**10


class Interrupted(TorchDispatchMode):
    """Ctrl-C at the n-th call that reaches torch; without a number it counts them."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.at, self.count = at, 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.count += 1
        if self.count == self.at:
            raise KeyboardInterrupt
        return func(*args, **(kwargs or {}))


def half() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZE)).to(torch.bfloat16).eval()  # type: ignore[no-any-return]


def ask(model: nn.Module, against: Any = None) -> float:
    R = nrm.measure(model, IDS, memory=TIGHT, against=against)
    assert any(node.block is not None for node in R.inner.tape.nodes)
    return float(R.in_units(R.input.positions).sum())


JOBS = {
    "measure": ask,
    "contrast": lambda model: ask(model, OTHER),
    "estimate": lambda model: nrm.estimate(model, IDS, memory=TIGHT).held,
}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95])
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_an_interrupt_leaves_the_model_as_it_was(job: str, share: float) -> None:
    model = half()
    expected = JOBS[job](model)
    with Interrupted() as all_of_it:
        JOBS[job](model)
    assert all_of_it.count > 50
    with no_trace(model, IDS):
        with pytest.raises(KeyboardInterrupt), Interrupted(max(1, int(share * all_of_it.count))):
            JOBS[job](model)
        assert all(p.dtype == torch.bfloat16 for p in model.parameters())
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert JOBS[job](model) == pytest.approx(expected, rel=1e-6)


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_a_measure_that_was_interrupted_answers_when_it_is_asked_again() -> None:
    """Half a block that was computed again is not taken for a whole one."""
    model = half()
    expected = nrm.measure(model, IDS)(nrm.input.positions)
    for share in (0.1, 0.4, 0.7, 0.9):
        R = nrm.measure(model, IDS, memory=TIGHT)
        with Interrupted() as whole:
            nrm.measure(model, IDS, memory=TIGHT)(nrm.input.positions)
        with Interrupted() as making:
            nrm.measure(model, IDS, memory=TIGHT)
        with pytest.raises(KeyboardInterrupt), Interrupted(max(1, int(share * (whole.count - making.count)))):
            R(R.input.positions)
        torch.testing.assert_close(R(R.input.positions), expected, rtol=1e-5, atol=1e-6)

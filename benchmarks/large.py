"""Memory of large language models: what a token heat map takes beyond the weights, each line in a process of its own.

``smollm2`` and ``stories`` are trained models in float32 at several lengths, ``contrast`` is the first one against a
text with another token, and ``backward`` a forward and backward pass to its embeddings. Beside what was measured
stands what ``nrm.estimate`` says of tensors; with ``--returned`` the allocator gives memory back at once, so that
nothing else is left. ``llama`` has Llama configurations with random weights in bfloat16; "8b" is that of Llama-3-8B
and wants 22 GB.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nrm

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data")
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""By these in the environment, tensors of glibc's allocator are given back as soon as they are dropped."""
SIZES: dict[str, dict[str, int]] = {
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
           "num_key_value_heads": 8, "vocab_size": 128256},
    "3b": {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
           "num_key_value_heads": 8, "vocab_size": 128256},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
           "num_key_value_heads": 8, "vocab_size": 128256},
}  # fmt: skip


def smollm2() -> nn.Module | None:
    """The trained model, or None where its weights are not."""
    from real.smollm2 import FOLDER, load_smollm2

    return load_smollm2(DATA / FOLDER)[0] if (DATA / FOLDER).exists() else None


def stories() -> nn.Module:
    """A small trained model of children's stories."""
    from real.stories import load_stories

    return load_stories(DATA / "stories15M")


def llama(size: str) -> nn.Module:
    """A Llama of this size with random weights in bfloat16, which are never there in another precision."""
    import vision

    vision.load()  # before transformers, which imports it
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(**SIZES[size], rope_theta=500000.0, max_position_embeddings=8192)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model = model.to_empty(device="cpu").eval()
    model.model.rotary_emb = LlamaRotaryEmbedding(config)
    some = torch.randn(2**22, generator=torch.Generator().manual_seed(0)).mul_(0.02).to(torch.bfloat16)
    for weight in model.parameters():
        flat = weight.data.view(-1)
        for begin in range(0, len(flat), len(some) - 7):  # not a multiple of any width: rows differ
            part = flat[begin : begin + len(some) - 7]
            part.copy_(some[: len(part)]) if weight.ndim > 1 else part.fill_(1.0)
    return model


def resident(peak: bool = False) -> int:
    """Bytes of memory of this process, now or at its peak."""
    key = "VmHWM" if peak else "VmRSS"
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(key)))


def forget_peak() -> None:
    """Lets the peak begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def backward(model: Any, ids: Tensor) -> None:
    """A forward and a backward pass to the embeddings of the tokens."""
    model.requires_grad_(False)
    embedded = model.get_input_embeddings()(ids).requires_grad_()
    model(inputs_embeds=embedded).logits[0, -1].max().backward()


def line(kind: str, size: str, tokens: int, memory: str) -> None:
    """One line of the table, measured in this process."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(ROOT / "tests"))
    model = llama(size) if kind == "llama" else stories() if kind == "stories" else smollm2()
    assert model is not None
    weights = sum(p.numel() for p in model.parameters())
    ids = torch.randint(5, 1000, (1, tokens), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model(ids[:, :2])
    before = resident()
    forget_peak()
    begin = time.process_time()
    if kind == "backward":
        backward(model, ids)
        mass = 1.0
    else:
        other = None if kind != "contrast" else torch.where(torch.arange(tokens) == tokens - 2, ids + 7, ids)
        R = nrm.measure(model, ids, memory=memory, against=other)
        mass = float(R(R.input.positions).sum())
    seconds, peak = time.process_time() - begin, resident(peak=True)
    estimated = "" if kind == "backward" else f"{estimate(model, ids, memory, kind) / 1e9:.3f}"
    print(
        f"| {kind} {size} | {tokens} | {weights / 1e9:.2f} | {peak / 1e9:.2f} | {(peak - before) / 1e9:.3f} "
        f"| {estimated} | {(peak - before) / weights:.2f} | {seconds:.1f} | {mass:.5f} |"
    )


def estimate(model: nn.Module, ids: Tensor, memory: str, kind: str) -> int:
    """The peak beyond the weights, as it is known from shapes."""
    return nrm.estimate(model, ids, memory=memory, against=True if kind == "contrast" else None).peak


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", choices=("smollm2", "stories", "backward", "contrast", "llama"))
    parser.add_argument("--size", default="", choices=("", *SIZES))
    parser.add_argument("--tokens", type=int, nargs="+", default=[16])
    parser.add_argument("--memory", default="auto", help="as nrm.measure takes it")
    parser.add_argument("--returned", action="store_true", help="let the allocator give memory back at once")
    parser.add_argument("--line", action="store_true", help="measure in this process, without the head of the table")
    options = parser.parse_args()
    if options.line:
        line(options.kind, options.size, *options.tokens, options.memory)
        return
    print(
        "| model | tokens | parameters (1e9) | peak of the process, GB | beyond the weights, GB "
        "| estimated, GB | bytes per parameter | processor seconds | mass |\n|---|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    size = ["--size", options.size] if options.size else []
    for tokens in options.tokens:
        command = [
            sys.executable,
            __file__,
            options.kind,
            *size,
            "--tokens",
            str(tokens),
            "--memory",
            options.memory,
            "--line",
        ]
        subprocess.run(command, check=True, env=dict(os.environ, **(RETURNED if options.returned else {})))


if __name__ == "__main__":
    main()

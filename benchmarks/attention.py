"""Transformers: what questions cost, in forward passes of the same model, against the bounds we promise.

A BERT of the base size with random weights, and stories15M where the data is there ($NRM_DATA or ../shared/data).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from run import ratios
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

import nrm

DATA = Path(os.environ.get("NRM_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
Inputs = Mapping[str, Tensor]


def bert() -> tuple[nn.Module, Inputs]:
    """BERT-base, 64 tokens, random weights."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig()).eval()
    ids = torch.randint(1000, 30000, (1, 64))
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def stories() -> tuple[nn.Module, Inputs] | None:
    """stories15M with its trained weights, 24 tokens of a story; None if it is not there."""
    home = DATA / "stories15M"
    if not home.exists():
        return None
    config = LlamaConfig(**json.loads((home / "config.json").read_text()))
    model = LlamaForCausalLM(config)
    weights = {k: v.float() for k, v in load_file(home / "model.safetensors").items()}
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    prompt = [1, 9038, 2501, 263, 931, 727, 471, 263, 2217, 7826, 4257, 365, 2354, 29889, 2296, 18012, 304, 1708, 5377,
              297, 278, 8775, 1195, 29889]  # fmt: skip
    return model.float().eval(), {"input_ids": torch.tensor([prompt])}


def heat_map(model: nn.Module, inputs: Inputs) -> Tensor:
    """Capture and the relevance of every token."""
    R = nrm.measure(model, inputs)
    return R(R.input.positions)


def head_pairs(model: nn.Module, inputs: Inputs, layers: str) -> Tensor:
    """Capture and the table of all pairs of heads of two adjacent layers in the middle."""
    R = nrm.measure(model, inputs)
    heads = [layer.input.heads for layer in R.find(layers)]
    middle = len(heads) // 2
    return R(heads[middle - 1], heads[middle])


def head_graph(model: nn.Module, inputs: Inputs, layers: str) -> Tensor:
    """Capture and the relevance of every pair of heads of the whole network."""
    R = nrm.measure(model, inputs)
    heads = [layer.input.heads for layer in R.find(layers)]
    return torch.stack([R(low, high) for low, high in itertools.combinations(heads, 2)])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(2)
    print("| transformers, capture included | measured | bound |\n|---|---|---|")
    model, inputs = bert()
    _report(model, inputs, options.repeat, {
        "BERT-base, 64 tokens: token heat map": (lambda: heat_map(model, inputs), 5),
        "BERT-base: all 12 x 12 head pairs of two adjacent layers":
            (lambda: head_pairs(model, inputs, "*.attention.output.dense"), 8),
    })  # fmt: skip
    found = stories()
    if found is None:
        print("| stories15M | no data | |")
        return
    llama, prompt = found
    _report(llama, prompt, options.repeat, {
        "stories15M, 24 tokens: token heat map": (lambda: heat_map(llama, prompt), 0),
        "stories15M: all pairs among its 36 heads": (lambda: head_graph(llama, prompt, "*.self_attn.o_proj"), 60),
    })  # fmt: skip


def _report(model: nn.Module, inputs: Inputs, repeat: int, jobs: dict[str, tuple[Callable[[], object], int]]) -> None:
    def forward() -> object:
        with torch.no_grad():
            return model(**inputs)

    times = ratios(forward, {name: job for name, (job, _) in jobs.items()}, repeat)
    for name, ratio in times.items():
        print(f"| {name} | {ratio:.1f} forward passes | {jobs[name][1] or 'none set'} |")


if __name__ == "__main__":
    main()

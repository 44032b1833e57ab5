"""Beside LXT: a token heat map of SmolLM2-135M in forward passes, and what its relevances add up to, in one run.

``make bench-peers`` runs it in an environment of its own, with LXT and the version of transformers that it was written
for. LXT patches the classes of transformers; here it does so for its own turns only; SmolLM2 is from ``make smollm2``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nrm

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]

import vision  # noqa: E402

vision.load()  # LXT imports it
from contrast import HOMES, times  # noqa: E402
from lxt.efficient import monkey_patch  # noqa: E402
from lxt.efficient.models import llama as theirs  # noqa: E402
from transformers import AutoConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402

from real.smollm2 import FOLDER  # noqa: E402

TEXT = (
    "The old harbour lies at the end of a narrow road. In the morning the boats come back, and the nets are carried "
    "over the wet stones to the sheds, where women and men sort the fish into boxes of ice. Nobody speaks much. When "
    "the sun has risen above the lighthouse, the first vans arrive from the town, and the boxes are sold within an "
    "hour, most of them to the same five buyers who came yesterday. After that the place is empty again. A few gulls "
    "stay, and an old man who mends nets in front of his house. He has done so for forty years, he says, and he will "
    "do so until his hands no longer can. Once he had a boat of his own, which was called Maria, as nearly all boats "
    "here were, after a wife, a mother or a saint. It was sold when the price of fuel went up, and what he got for it "
    "paid for the roof. Tourists sometimes ask him whether he misses the sea. He looks at them for a while, then he "
    "points at the water, which is ten steps away, and goes on with his work. In winter the road is often closed, and "
    "then the village is an island for some days, with its own bread, its own fish and its own news. People here say "
    "that this is the best time of the year. The capital of the country is far away, and its name is"
)  # fmt: skip
PATCHED = [(modeling_llama.LlamaMLP, "forward"), (modeling_llama.LlamaRMSNorm, "forward"), (nn.Dropout, "forward"),
           (modeling_llama, "eager_attention_forward"), (modeling_llama, "ALL_ATTENTION_FUNCTIONS")]  # fmt: skip
"""All that LXT exchanges for Llama models."""


def load(home: Path) -> Any:
    """SmolLM2 in float32. Newer versions of transformers write the base of the rotation in another place."""
    config = AutoConfig.from_pretrained(home)
    config.rope_theta = json.loads((home / "config.json").read_text())["rope_parameters"]["rope_theta"]
    model = LlamaForCausalLM.from_pretrained(home, config=config, torch_dtype=torch.float32).eval()
    return model.requires_grad_(False)


@contextlib.contextmanager
def patched(rules: dict[Any, Any] | None) -> Iterator[None]:
    """LXT's patches, taken back afterwards; None for none."""
    before = [getattr(owner, name) for owner, name in PATCHED]
    try:
        if rules is not None:
            modeling_llama.ALL_ATTENTION_FUNCTIONS = dict(before[-1].items())  # some rules write into it
            monkey_patch(modeling_llama, rules)
        yield
    finally:
        for (owner, name), value in zip(PATCHED, before, strict=True):
            setattr(owner, name, value)


def gradient_heat(model: Any, ids: Tensor, rules: dict[Any, Any] | None) -> tuple[Tensor, Tensor]:
    """Gradient times embedding of the explained logit, under LXT's patches or none; and that logit."""
    with patched(rules):
        words = model.get_input_embeddings()(ids).requires_grad_()
        logit = model(inputs_embeds=words, use_cache=False).logits[0, -1].max()
        logit.backward()
    return (words * words.grad).float().sum(-1)[0].detach(), logit.detach()


def our_heat(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Our heat map in units of the logit, and the logit."""
    R = nrm.measure(model, {"input_ids": ids}, progress=False)
    return R.in_units(R.tokens)[0], R.value[0]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--tokens", type=int, nargs="*", default=[64, 256])
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=nrm.NrmWarning)
    warnings.filterwarnings("error", message="Failed to patch|.*already patched")  # by LXT
    home = next((home / FOLDER for home in HOMES if (home / FOLDER).exists()), None)
    if home is None:
        print(f"no {FOLDER} in {' or '.join(map(str, HOMES))}: make smollm2")
        return
    model, tokenizer = load(home), PreTrainedTokenizerFast(tokenizer_file=str(home / "tokenizer.json"))
    whole = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    jobs: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
        "LXT, AttnLRP": lambda ids: gradient_heat(model, ids, theirs.attnLRP),
        "LXT, CP-LRP": lambda ids: gradient_heat(model, ids, theirs.cp_LRP),
        "gradient x input, nothing patched": lambda ids: gradient_heat(model, ids, None),
        "nrm": lambda ids: our_heat(model, ids),
    }
    rows: dict[str, list[str]] = {name: [] for name in jobs}
    for count in options.tokens:
        ids = whole[:, -count:]
        if ids.shape[1] < count:
            raise SystemExit(f"the text has {whole.shape[1]} tokens")

        def run(ids: Tensor = ids) -> object:
            with torch.no_grad():
                return model(ids, use_cache=False)

        here = {name: (lambda job=job, ids=ids: job(ids)) for name, job in jobs.items()}
        found = times({"run": run, **here}, options.repeat, of=min)
        for name, job in jobs.items():
            relevance, logit = job(ids)
            rows[name] += [f"{found[name] / found['run']:.2f}", f"{float(relevance.sum() / logit):.5f}"]
        print(f"{count} tokens: a forward pass is {1e3 * found['run']:.0f} ms", flush=True)
    print("| | " + " | ".join(f"{count} tokens, forward passes | sum" for count in options.tokens) + " |")
    print("|---|" + "---|---|" * len(options.tokens))
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

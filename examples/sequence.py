"""Sequences: the steps of an LSTM, the tokens and heads of a Llama. A tutorial in cells; it needs no download.

Run it as a script, open it as a notebook (`# %%` cells), or read the page that the docs make of it.
"""

# %% [markdown]
# # Sequences: an LSTM and a Llama
#
# Two networks that are trained here within seconds. The first reads a series step by step, and we ask at which step
# the decision was made and what happened to it since. The second is a small Llama of Hugging Face that has to
# remember whose hat has which colour, and we ask which words and which attention heads it used.

# %%
import os
import pathlib

import torch
from torch import nn

import nrm

# %% [markdown]
# ## An LSTM that waits for a mark
#
# A series has a value and a mark. The class is the sign of the value at the one step that is marked; everything else
# is noise.


# %%
torch.manual_seed(0)


def series(count, steps=20):
    values, marks = torch.randn(count, steps), torch.zeros(count, steps)
    at = torch.randint(3, steps - 3, (count,))
    marks[torch.arange(count), at] = 1
    return torch.stack([values, marks], 2), (values[torch.arange(count), at] > 0).long(), at


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(2, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


reader = Reader()
optimizer = torch.optim.Adam(reader.parameters(), 2e-2)
for _ in range(250):
    x, y, _ = series(128)
    optimizer.zero_grad()
    nn.functional.cross_entropy(reader(x), y).backward()
    optimizer.step()
reader.eval()
x, y, at = series(200)
with torch.no_grad():
    right = reader(x).argmax(1) == y
print(f"{right.float().mean():.0%} right")

# %% [markdown]
# `nn.LSTM` is unfolded as it is; no step of yours. What decides is the *difference* of the two logits, so that is
# explained.

# %%
some = right.nonzero()[:4, 0]
sign = y[some] * 2 - 1  # the right class less the other one
R = nrm.measure(reader, x[some], output=lambda o: (o[:, 1] - o[:, 0]) * sign)
steps = R(R.input.positions)
print("marked steps:       ", at[some].tolist())
print("most relevant steps:", steps.argmax(1).tolist())
ax = nrm.plot.series(R(R.input)[0], x[some][0], channels=["value", "mark"])

# %% [markdown]
# A hidden state is a layer of its own, so that questions about time are ordinary questions. How much of the decision
# was in the hidden state after each step, and in the cell state, where an LSTM keeps what it wants to remember?

# %%
lstm = R["lstm"]
hidden = R(lstm.steps)[0]
cell = torch.stack([R(R[f"lstm/c#{t}"].all)[0] for t in range(19)])
print("step   hidden state   cell state")
for t in range(int(at[some][0]) - 2, int(at[some][0]) + 4):
    print(f"{t:4}   {float(hidden[t]):12.1%}   {float(cell[t]):10.1%}")

# %% [markdown]
# ## A Llama that remembers hats
#
# "tom red hat ann blue hat tom" has to go on with "red": the network must find who is asked about, and what stood
# beside that name. Two layers of four heads learn it in a few seconds.

# %%
from transformers import LlamaConfig, LlamaForCausalLM

words = ["tom", "ann", "bob", "eve", "red", "blue", "green", "black", "hat"]
config = LlamaConfig(
    vocab_size=9, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    initializer_range=0.2,
)  # fmt: skip


def stories(count):
    names = torch.stack([torch.randperm(4)[:2] for _ in range(count)])
    colours = torch.stack([torch.randperm(4)[:2] + 4 for _ in range(count)])
    who, hat = torch.randint(0, 2, (count, 1)), torch.full((count, 1), 8)
    told = [names[:, :1], colours[:, :1], hat, names[:, 1:], colours[:, 1:], hat, names.gather(1, who)]
    return torch.cat(told, 1), colours.gather(1, who)[:, 0]


torch.manual_seed(0)
llama = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(llama.parameters(), 5e-3)
for _ in range(80):
    ids, answer = stories(128)
    optimizer.zero_grad()
    nn.functional.cross_entropy(llama(ids).logits[:, -1], answer).backward()
    optimizer.step()
llama.eval()
ids, answer = stories(200)
with torch.no_grad():
    print(f"{(llama(ids).logits[:, -1].argmax(1) == answer).float().mean():.0%} right")

# %% [markdown]
# Explained is the right colour's logit less that of the other colour in the story. Integers are explained at their
# embedding; `.positions` are the tokens.

# %%
ids = torch.tensor([[words.index(w) for w in ["tom", "red", "hat", "ann", "blue", "hat", "tom"]]])
red, blue = words.index("red"), words.index("blue")
R = nrm.measure(llama, {"input_ids": ids}, output=lambda o: o.logits[:, -1, red] - o.logits[:, -1, blue])
tokens = R(R.input.positions)[0]
for word, relevance in zip((words[i] for i in ids[0]), tokens.tolist(), strict=True):
    print(f"{word:>6} {relevance:7.1%}  {'+' * round(20 * max(relevance, 0))}{'-' * round(20 * max(-relevance, 0))}")
nrm.plot.text(tokens, [words[i] for i in ids[0]])  # in a notebook: the words in colour

# %% [markdown]
# Attention weights are held constant (`rules="transformer"`, the choice of `"auto"`), so that relevance follows what
# is *moved*: the colour beside the right name. `rules="attn-lrp"` gives queries and keys their part as well, at the
# price of more cancellation.

# %% [markdown]
# ## Heads, and pairs of heads
#
# Attention heads live where the output projection reads. One table has the heads of both layers together: walks that
# pass a head of the first layer and then a head of the second.

# %%
first, second = (R[f"model.layers.{i}.self_attn.o_proj"].input.heads for i in (0, 1))
print("heads of layer 1:", [f"{float(r):.0%}" for r in R(first)[0]])
print("heads of layer 2:", [f"{float(r):.0%}" for r in R(second)[0]])
print(R.flows(first, second, k=3, sign="abs"))
best = int(R(second)[0].argmax())
moved = R(R.input.positions, second[best])[0]
print(
    f"head {best} of layer 2 brings in:", {words[t]: f"{float(r):.0%}" for t, r in zip(ids[0, :5], moved, strict=False)}
)

# %% [markdown]
# ## Is it true?
#
# Removing heads should cost about what they carry, unless others step in: relevance shares out what heads do
# together, removal shows what cannot be replaced. So remove them one by one, and two at a time.

# %%
layer = R["model.layers.1.self_attn.o_proj"].input
for chosen in ([0], [1], [2], [3], [1, 3], [0, 1, 2, 3]):
    heads = layer.head(chosen)
    score, lost = nrm.evaluate.scores(R, heads), nrm.evaluate.contribution(R, heads)
    print(f"heads {chosen!s:13} relevance {float(score):5.2f}, the output loses {float(lost):5.2f}")

# %% [markdown]
# One by one the heads lose less than they carry, because the others still answer. Together they lose what they carry.
#
# ## A Llama that tells stories
#
# The same with a trained one: stories15M, six layers of six heads, from `$NRM_DATA/stories15M` in the layout of Hugging
# Face. Its weights are of half precision. It is run op by op in single precision, and stays as it is. Explained is why
# it goes on with "ball" rather than with its next best word, "string".

# %%
folder, shown = pathlib.Path(os.environ.get("NRM_DATA", "data"), "stories15M"), None
told = [
    "<s>",
    "Tom",
    "had",
    "a",
    "red",
    "ball",
    ".",
    "He",
    "threw",
    "the",
    "ball",
    "up",
    "high",
    ".",
    "Then",
    "he",
    "tried",
    "to",
    "catch",
    "the",
]
ids = [1, 4335, 750, 263, 2654, 8287, 49, 940, 18318, 278, 8287, 701, 1880, 49, 1987, 540, 1898, 304, 4380, 278]
ball, string = 8287, 1347
if folder.exists():
    from transformers import AutoModelForCausalLM

    teller = AutoModelForCausalLM.from_pretrained(folder).eval()
    S = nrm.measure(
        teller,
        {"input_ids": torch.tensor([ids])},
        output=lambda o: o.logits[:, -1, ball] - o.logits[:, -1, string],
    )
    first = S.input.position(told.index("ball"))  # what each head brings from the first "ball"
    for layer in S.find("*.self_attn.o_proj"):
        print(f"{layer}: " + " ".join(f"{float(share):6.1%}" for share in S(first, layer.input.heads)[0]))
    shown = nrm.plot.text(S(S.input.positions)[0], told)
else:
    print("stories15M is not here: this cell says nothing.")
shown

# %% [markdown]
# With it, the words that count are the first "ball", "threw", and the "the" that asks for a noun. "ball" is brought to
# the end by the fifth layer: its third head argues for it, its second against it, and the other layers add little.
#
# ## On a language model of yours
#
# ```py
# model, tokenizer = (kind.from_pretrained(NAME) for kind in (AutoModelForCausalLM, AutoTokenizer))
# inputs = tokenizer("The capital of France is", return_tensors="pt")
# R = nrm.measure(model.eval(), inputs)  # the next token
# nrm.plot.text(R(R.input.positions)[0], tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]))
# heads = [layer.input.heads for layer in R.find("*.self_attn.o_proj")]
# R.flows(*heads[:2], k=5)  # or any other layers: see R.layers
# ```
#
# - Explain a *difference* of two logits where you can: `output=lambda o: o.logits[:, -1, yes] - o.logits[:, -1, no]`.
#   What raises all tokens alike decides nothing.
# - Half-precision weights are the normal case: they run in single precision, op by op, and the model stays as it is.
# - Look at `R.check()`: a total variation in the hundreds means that much cancels.
#
# Next: [graphs](graph.py), [sequences in detail](../docs/sequences.md), [trusting the numbers](../docs/trusting.md).

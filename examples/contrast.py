"""Contrasts: why this, rather than that? A digit, and a circuit of attention heads. A tutorial in cells.

Run it as a script, open it as a notebook (`# %%` cells), or read the page that the docs make of it. It needs no
download, and a few seconds.
"""

# %% [markdown]
# # Contrasts: why this, rather than that?
#
# A measure of one output says what of it is whose. A *contrast* explains the difference between two runs, here and on
# a reference: `nrm.measure(model, x, against=reference)`. Every step of it is exact, nothing is held constant, and all
# questions are asked as ever. First a digit against several references, then two sentences that differ in one word.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import nrm
from nrm.demo import digits, read_digits

model, _, names = digits()  # a small trained network that the package carries
images, classes = read_digits()
x, data = images[1503:1504], images[:1500]
zero = data[classes[:1500] == 0][:1]
R = nrm.measure(model, x, against=zero, target=6, labels={"output": names})
print(R)

# %% [markdown]
# `R.here` and `R.there` are the two outputs, `R.value` is their difference. Contributions in units of the output add up
# to it, at every cut of the network, to the last digits:

# %%
for name in ("input", "relu1", "relu3"):
    print(f"{name:>6} {float(R.in_units(R[name].all)):.5f} of {float(R.value):.5f}")
print(R.check().verdict)

# %% [markdown]
# ## The reference is the question
#
# Rather than nothing; rather than the mean of all digits; rather than that 0. What does not differ has no share. Where
# the mean digit has ink and this one has none, its absence counts.

# %%
references = {"nothing": "zeros", "its blur": "blur", "the mean digit": nrm.reference("mean", data), "that 0": zero}
figure, axes = plt.subplots(1, 5, figsize=(11, 3.0), layout="constrained")
axes[0].imshow(x[0, 0].numpy(), cmap="gray_r")
axes[0].set(title="x", xticks=[], yticks=[])
for ax, (name, reference) in zip(axes[1:], references.items(), strict=True):
    C = nrm.measure(model, x, against=reference, target=6)
    nrm.plot.heatmap(C(C.input)[0], image=1 - x[0], ax=ax, smooth=False, colorbar=False, title=f"rather than\n{name}")
    print(f"rather than {name:>14}: {float(C.here):5.1f} - {float(C.there):5.1f} = {float(C.value):5.1f}")

# %% [markdown]
# Twenty references instead of one: a list. Their average adds up to the output less the mean output.

# %%
A = nrm.measure(model, x, against=list(data[:20].split(1)), target=6)
mean = A.in_units(A.input)
print(f"{float(mean.sum()):.4f} = {float(A.here):.4f} - {float(A.there):.4f}")
low, high = A.interval(A.input)
print(f"{int(((low > 0) | (high < 0)).sum())} of 64 pixels have a share whose sign does not depend on the references")

# %% [markdown]
# ## A sentence against its twin
#
# "Ann and Bob met. Bob gave it to ..." is answered by Ann, "Ann gave it to ..." by Bob. How does a network know? We
# train a small transformer on such sentences: two layers, four heads each.

# %%
NAMES = ["Ann", "Bob", "Cem", "Dan", "Eva", "Fay", "Gil", "Hal"]
WORDS = [*NAMES, "and", "met", "gave", "to"]


def sentences(count, seed):
    """Sentences of seven words, and the name that each has to be completed by."""
    generator = torch.Generator().manual_seed(seed)
    both = torch.rand(count, len(NAMES), generator=generator).argsort(1)[:, :2]
    giver = torch.randint(2, (count, 1), generator=generator)
    words = [torch.full((count, 1), WORDS.index(word)) for word in ("and", "met", "gave", "to")]
    said = both.gather(1, giver)
    whole = torch.cat([both[:, :1], words[0], both[:, 1:], words[1], said, *words[2:]], 1)
    return whole, both.gather(1, 1 - giver)[:, 0]


class Storyteller(nn.Module):
    def __init__(self, width=32, heads=4, layers=2, length=7):
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), width), nn.Parameter(0.1 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(WORDS))
        self.register_buffer("later", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, ids):
        return self.head(self.encoder(self.words(ids) + self.places, mask=self.later))[:, -1]


torch.manual_seed(0)
story = Storyteller()
optimizer = torch.optim.Adam(story.parameters(), 3e-3)
for step in range(150):
    ids, answer = sentences(128, step)
    optimizer.zero_grad()
    nn.functional.cross_entropy(story(ids), answer).backward()
    optimizer.step()
story.eval()
ids, answer = sentences(500, 10_000)
with torch.no_grad():
    print(f"{(story(ids).argmax(1) == answer).float().mean():.1%} of 500 sentences are completed correctly")

# %% [markdown]
# The twin of a sentence has the other name in the fifth place. What is explained is how much more the answer is "Ann"
# than "Bob", here and there: it turns around with the name.

# %%
shown, other = (f"Ann and Bob met {name} gave to".split() for name in ("Bob", "Ann"))
sentence, twin = (torch.tensor([[WORDS.index(word) for word in words]]) for words in (shown, other))
T = nrm.measure(story, sentence, against=twin, output=lambda o: o[:, 0] - o[:, 1])
print(T)
print([round(float(r), 3) for r in T(T.input.positions)[0]])

# %% [markdown]
# All of the difference begins with the name that differs; that much is trivial. Its way to the last word is not.
# `.edges` of an attention module are the walks through every head, from the token that it reads to the one that it
# writes, and a stack of them has all layers.

# %%
attention = [T[f"encoder.layers.{i}.self_attn"] for i in range(2)]
flow = T(nrm.stack(*(a.edges for a in attention)))[0]  # layers, heads, queries, keys
figure, axes = plt.subplots(2, 4, figsize=(11, 4.2), layout="constrained")
limit = float(flow.abs().max())
for (layer, head), ax in zip([(i, h) for i in range(2) for h in range(4)], axes.flat, strict=True):
    nrm.plot.table(flow[layer, head, 4:], rows=shown[4:], columns=shown, ax=ax, scale=limit, colorbar=False)
    ax.set_title(f"layer {layer}, head {head}: {float(flow[layer, head].sum()):+.0%}", fontsize=9, loc="left")

# %% [markdown]
# A head makes a difference in two ways: by *where* it looks (its queries and keys) and by *what* it moves (its values).
# `.q`, `.k` and `.v` tell them apart. What is read from the first two names can only be where: nothing differs there.
# A few heads do almost all of it: one at the repeated name, which it asks what stood there before, and some at the last
# word, which then look elsewhere among the names.

# %%
for layer, attn in enumerate(attention):
    for head in range(4):
        where = T(attn.q.heads)[0, head] + T(attn.k.heads)[0, head]
        what = T(attn.v.heads)[0, head]
        print(f"layer {layer}, head {head}: where {float(where):+7.1%}, what {float(what):+7.1%}")

# %% [markdown]
# ## Is it true?
#
# A contrast is a prediction: so much is lost if a part is put back to its reference. We patch what every head writes by
# what it writes in the twin, and compare.

# %%
predicted, measured = [], []
for attn in attention:
    heads = T[f"{attn.name}.out_proj"].input
    for head in range(4):
        predicted.append(float(T.in_units(heads.head(head))))
        measured.append(float(nrm.evaluate.occlusion(T, heads.head(head), value="reference")))
        print(f"{heads.head(head)}: predicted {predicted[-1]:+6.2f}, lost {measured[-1]:+6.2f}")
print(f"correlation {float(nrm.evaluate.pearson(torch.tensor(predicted)[None], torch.tensor(measured)[None])):.2f}")

# %% [markdown]
# ## On data of yours
#
# - Tables: [contributions that add up](../docs/tabular.md), as a waterfall.
# - Language models: [SmolLM2's heads](../docs/sequences.md#a-sentence-against-its-twin), in the same lines.
# - Molecules: [an atom exchanged](../docs/graphs.md#an-atom-exchanged).
#
# Next: [which question to ask when](../docs/contrast.md), [evaluating explanations](evaluate.py).

"""Every picture that `nrm.plot` draws, with the code that draws it. A gallery in cells.

Run it as a script, open it as a notebook (`# %%` cells), or read the page that the docs make of it. It needs no
download, and some seconds.
"""

# %% [markdown]
# # Every picture
#
# All that `nrm.plot` draws, with the code beside it. Red argues *for* the explained output, blue *against* it, white is
# nothing. Every plot takes `ax=` (axes of yours), or `figsize=` and `dpi=` for a figure of its own; what it gives has
# `.save("name.png")`, or `.svg` and `.pdf`, which stay sharp at every size.
#
# The pictures need `pip install ".[viz,cluster]"`. Most are about one digit, as a small trained network sees it.

# %%
import torch
from torch import nn

import nrm
from nrm.demo import digits, read_digits

model, _, names = digits()
images, classes = read_digits()
image = images[1512]
R = nrm.measure(model, image[None], labels={"output": names})
a, b = R["relu1"], R["relu3"]
print(R)

# %% [markdown]
# ## A heat map
#
# The full colour is that of 99.5 % of the values unless `scale=` says otherwise, and the bar says so where that leaves
# something out (64 pixels are too few for it).

# %%
nrm.plot.heatmap(R(R.input), 1 - image, smooth=False, title=f"why {names[int(R.prediction[0])]}?", figsize=(4.6, 3.8))

# %% [markdown]
# ## A grid of heat maps
#
# One row per image, each heat map on its own scale unless `scale=` is a number.

# %%
best = [int(k) for k in R(b.channels)[0].argsort(descending=True)[:3]]
rows = []
for i in (1512, 1500):
    one = nrm.measure(model, images[i : i + 1])
    rows.append((1 - images[i], one(one.input), *(one(one.input, b.channel(k)) for k in best)))
shown = ["the digit", "all of it", *(f"through channel {k} of relu3" for k in best)]
nrm.plot.montage(rows, names=[names[int(classes[i])] for i in (1512, 1500)], columns=shown, smooth=False, size=1.7)

# %% [markdown]
# ## Where the strongest pairs look
#
# `strips` asks for the strongest combinations of blocks, and draws the heat map of each, with its share.

# %%
print(R.flows(a.channels, b.channels, k=4))
nrm.plot.strips(R, 1 - image, a.channels, b.channels, k=4, size=1.6)

# %% [markdown]
# ## How the decision flowed
#
# Layers as columns, their strongest blocks as boxes as high as their relevance, joint relevance as ribbons.

# %%
nrm.plot.flows(R, a.channels, b.channels, R.output, nodes=5)

# %% [markdown]
# ## A table
#
# `R.table` brings the names of rows and columns along: labels of the measure where it has some, else numbers.

# %%
nrm.plot.table(R.table(a.channels[:8], b.channels[:16]), title="channels of two layers")

# %% [markdown]
# ## The samples in which a block counts most

# %%
found = nrm.relmax(model, images[:150], b.channels, k=8, progress=False)
nrm.plot.gallery(found, *(b.channel(k) for k in best), k=8, model=model, dataset=images[:150])

# %% [markdown]
# ## A text, and generated text
#
# Tokens in the colours of their relevance; notebooks show them without matplotlib. The network is one that has learned
# to go on as before: it writes `b c d e` behind `a b c d e . a`, and every letter comes from where it stood.

# %%
ALPHABET = [*"abcdefghijklmnopqrstuvw."]
reader, _ = nrm.tasks.induction(1)
ids = torch.tensor([[ALPHABET.index(letter) for letter in "abcde.abcde"]])
text = nrm.generated(reader, None, ids[:, :7], answer=ids[:, 7:], progress=False)
words = [ALPHABET[i] for i in ids[0].tolist()]
last = nrm.plot.text(text.relevance[-1], words[:-1], title=f"what {words[-1]!r} comes from")
print(last)
last.draw(points=13)

# %%
ax = nrm.plot.generated(text, title="generated letters by their sources")
_ = ax.set_xticks(range(10), words[:-1]), ax.set_yticks(range(4), words[7:])

# %% [markdown]
# ## All that a model reads
#
# Images, sounds and texts on one colour scale, each with its share of the whole.


# %%
class Reader(nn.Module):
    """Says whether a word fits a picture; it is not trained."""

    def __init__(self):
        super().__init__()
        self.look, self.words, self.head = nn.Conv2d(1, 8, 2, 2), nn.Embedding(10, 8), nn.Linear(8, 2)

    def forward(self, pixel_values, input_ids):
        seen = torch.cat([self.look(pixel_values).flatten(2).mT, self.words(input_ids)], 1)
        return self.head(seen.relu().mean(1))


torch.manual_seed(0)
both = nrm.measure(Reader(), {"pixel_values": image[None], "input_ids": torch.tensor([[3, 1, 4]])})
nrm.plot.parts(both, {"image": 1 - image, "text": ["is", "this", "four"]})

# %% [markdown]
# ## A sequence
#
# Every channel as a line on the colours of its relevance, and bars of their sums.

# %%
steps = torch.linspace(0, 9, 60)
wave = torch.stack([steps.sin(), (2.3 * steps).cos() * (steps > 5)], 1)
cell = nn.GRU(2, 12, batch_first=True)
ends = nn.Linear(12, 2)


class Listener(nn.Module):
    """A recurrent network that decides by its last state; it is not trained."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = cell, ends

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


heard = nrm.measure(Listener(), wave[None])
share = heard(heard.input)
nrm.plot.series(share, wave, channels=["slow", "late"], rest=1 - float(share.sum()), figsize=(7, 3))

# %% [markdown]
# ## A graph
#
# Atoms and bonds in the colours of their relevance.

# %%
ring = [(i, (i + 1) % 6) for i in range(6)] + [(0, 6), (6, 7), (6, 8)]
bonds = torch.tensor(ring + [(j, i) for i, j in ring]).T
atoms = torch.tensor([0.1, 0.02, -0.04, 0.01, -0.04, 0.02, 0.45, 0.26, 0.22])
nrm.plot.graph(bonds, atoms, atoms[bonds].prod(0), labels="CCCCCCNOO", title="an invented share for every atom")

# %% [markdown]
# ## A circuit
#
# A few direct edges that carry the difference between two texts: here what makes the reader above say `e`.

# %%
other = ids[:, :-1].clone()
other[0, [3, 4]] = torch.tensor([ALPHABET.index("q"), ALPHABET.index("r")])
D = nrm.measure(reader, ids[:, :-1], against=other, target=(9, ALPHABET.index("e")))
circuit = D.circuit(mass=0.9)
print(circuit)
nrm.plot.circuit(circuit)

# %% [markdown]
# ## Amounts that add up
#
# A table's row against the mean row: what leads from one output to the other.

# %%
table = torch.rand(50, 5)
price = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
rather = nrm.measure(price, table[:1], against=table.mean(0, keepdim=True))
nrm.plot.waterfall(rather.in_units(rather.input), ["size", "age", "rooms", "floor", "light"], start=rather.there)

# %% [markdown]
# ## Relevance beside what removal does
#
# Each pair of channels is a point; the curves sum up what the pairs with the highest scores really contribute.

# %%
pairs = a.channels, b.channels
contributed, relevance = nrm.evaluate.contribution(R, *pairs), R.in_units(*pairs)
nrm.plot.scatter(contributed, relevance, labels=("joint relevance", "joint contribution"))

# %%
product = R(a.channels)[:, :, None] * R(b.channels)[:, None]
ks = [1, 3, 10, 30, 100, 300]
curves = {"joint relevance": relevance, "product of marginals": product}
nrm.plot.sc_curves(ks, {name: nrm.evaluate.sc_k(contributed, scores, ks) for name, scores in curves.items()})

# %% [markdown]
# The colour map of all of them is `nrm.plot.diverging()`, for pictures of your own.

"""Logic about walks: which way did the evidence take, and what is left without the obvious way? A tutorial in cells.

Run it as a script, open it as a notebook (`# %%` cells), or read the page that the docs make of it. It needs no
download.
"""

# %% [markdown]
# # Logic: which way did the evidence take?
#
# A heat map says which pixels counted. A network with a residual block has two ways for each of them: through the
# block, or past it. Did the loop of this 9 need the block? Does anything decide that avoids the three strongest
# channels? Such questions have an *and*, an *or* and a *not* in them, and each of them names a set of walks. So it
# has a relevance, and a heat map.
#
# The network is the one that the package carries (`nrm demo`), trained on scikit-learn's digits.

# %%
import matplotlib.pyplot as plt
import torch

import nrm
from nrm.demo import digits, read_digits
from nrm.demo.digits import LEARNED

model, _, names = digits()
images, classes = read_digits()
images, classes = images[LEARNED:], classes[LEARNED:]  # those it has not learned from
with torch.no_grad():
    right = model(images).argmax(1) == classes
print(f"{right.float().mean():.0%} of {len(images)} digits are read correctly")

nine = int(((classes == 9) & right).nonzero()[0])
R = nrm.measure(model, images[nine : nine + 1], rules=nrm.Gamma(0.25), bias="input", labels={"output": names})
print(R)

# %% [markdown]
# ## Events
#
# `nrm.visits` makes an event of a set: a walk visits it, or does not. Here are three, in three layers. The block is
# `relu2(conv2(h) + h)`: a walk that visits `conv2` takes the block, every other one the skip connection.

# %%
x, block, late = R.input, R["conv2"], R["relu3"]
strongest = R(late.channels)[0].argsort(descending=True)[:3].tolist()
upper = nrm.visits(x[:, :4])  # begins in the upper half
takes = nrm.visits(block.all)  # goes through the block
strong = nrm.visits(late.channel(strongest))  # passes one of the three strongest channels

for name, event in {
    "upper half": upper,
    "through the block": takes,
    "from the upper half through the block": upper & takes,
    "from the upper half past the block": upper & ~takes,
    "upper half or block, not both": upper ^ takes,
    "upper half, and if block, then a strong channel": upper & takes.implies(strong),
}.items():
    print(f"{float(R(event)):7.1%}  {name}")

# %% [markdown]
# Events are asked like sets: beside other sets, and as conditions. Of what passes the strong channels, how much came
# through the block? And of what does not?

# %%
for name, event in {"strong channels": strong, "all others": ~strong}.items():
    print(f"{name}: {float(R(event)):.0%} of the decision, {float(R(takes, given=event)):.0%} of it through the block")

# %% [markdown]
# ## The whole truth table
#
# `R.dividends` gives every combination in one sweep: an axis of two (avoided, visited) for every event. The eight
# entries add up to 1, and every formula about the three events is a sum of some of them.

# %%
table = R.dividends(upper, takes, strong)[0]
rows = {
    f"{'upper' if i else 'lower'}, {'block' if j else 'skip'}, {'strong' if k else 'other'}": float(table[i, j, k])
    for i in (1, 0)
    for j in (1, 0)
    for k in (1, 0)
}
figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
ax.barh(list(rows), list(rows.values()), color=["tab:red" if share > 0 else "tab:blue" for share in rows.values()])
ax.axvline(0, color="0.3", linewidth=0.8)
ax.invert_yaxis()
ax.xaxis.set_major_formatter("{x:.0%}")
ax.set_xlabel("share of the decision")
assert abs(sum(rows.values()) - 1) < 1e-4
assert abs(float(table[1, 1].sum()) - float(R(upper & takes))) < 1e-4

# %% [markdown]
# The loop in the upper half decides, mostly through the block; the lower half argues against a 9. "Lower" has the
# biases too, as walks that begin there avoid the upper half: `~` of an event is *all other walks*.
#
# ## Where?
#
# A layer beside an event is an axis, as always: the heat map of just these walks.

# %%
picture = 1 - images[nine].expand(3, -1, -1)
maps = {"": picture, "everything": R(x)[0], "block": R(x, takes)[0], "skip": R(x, ~takes)[0]}
maps["block,\nno strong channel"] = R(x, takes & ~strong)[0]
figure = nrm.plot.montage([list(maps.values())], names=["digit 9"], columns=list(maps), smooth=False)

# %% [markdown]
# Without its three strongest channels the picture is nearly the same: the evidence is spread over many channels. That
# is what to look for before saying that "channel 5 detects the loop".
#
# ## Is that so for other digits?
#
# A batch has a measure per sample. Here are all the correct ones of the 297, by class.

# %%
B = nrm.measure(model, images[right], rules=nrm.Gamma(0.25), bias="input")
found = B.dividends(upper, takes)
kinds = {"upper, block": (1, 1), "upper, skip": (1, 0), "lower, block": (0, 1), "lower, skip": (0, 0)}
figure, ax = plt.subplots(figsize=(8, 3.2), layout="constrained")
for shift, (name, (i, j)) in enumerate(kinds.items()):
    share = [float(found[classes[right] == c, i, j].mean()) for c in range(10)]
    ax.bar([c + 0.2 * shift - 0.3 for c in range(10)], share, 0.2, label=name)
ax.axhline(0, color="0.3", linewidth=0.8)
ax.set(xticks=range(10), xlabel="digit", ylabel="share of the decision")
ax.yaxis.set_major_formatter("{x:.0%}")
ax.legend(fontsize=8, ncols=4)

# %% [markdown]
# A 9 is decided above, a 2, a 4 and a 7 below, and the block carries about four fifths wherever the evidence begins.
# The events were written for one image and are asked of all of them here: they are values without tensors.
#
# ## Is it true?
#
# "The upper half through the block" is a claim about the network: take both away, and what only both together could
# do is gone. That is their joint contribution, by intervention ([evaluating explanations](evaluate.py)).

# %%
pair = (B.input[:, :4], B["conv2"].all)
claimed, lost = nrm.evaluate.scores(B, *pair), nrm.evaluate.contribution(B, *pair)
print(f"correlation over {len(lost)} digits: {torch.corrcoef(torch.stack([claimed, lost]))[0, 1]:.2f}")
ax = nrm.plot.scatter(lost, claimed)

# %% [markdown]
# ## Formulas as text, and what they cost
#
# On the command line, in the explorer and in files a formula is a text (`pip install "nrm[query]"`); the sets get
# names. `R.plan` says how many messages a sweep has to carry before anything is computed: sets in a row and sets to
# avoid need one, an exclusive or two, and at worst every event doubles them.

# %%
question = nrm.query("loop AND NOT (block AND strong)", loop=upper, block=takes, strong=strong)
print(question)
print(f"{float(R(question)):.1%}\n")
print(R.plan(question))

# %% [markdown]
# ## On a model of yours
#
# - Residual networks: `nrm.visits(R["layer3.1.conv2"].all)` is "takes that block"; `R.layers` shows what is a cut.
# - Within one layer a walk visits one neuron, so `nrm.visits(pixel) & nrm.visits(other_pixel)` is 0. An *and* is for
#   sets of different layers. In transformers and graph networks the same place exists in every layer:
#   `nrm.visits(*(layer.position(i) for layer in layers))` is "is at this token (or atom) anywhere on its way", and two
#   of these can be visited together ([graphs](graph.py)).
# - An event needs no single layer: `nrm.visits(S1, S2)` is "one of these, wherever".
#
# All about events, weights instead of sets, and additive relevance: [formulas and weights](../docs/formulas.md). In
# SymbXAI's words: [methods as questions](../docs/methods.md).

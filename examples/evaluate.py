"""Evaluating explanations: two rules disagree, which one is right? A tutorial in cells.

Run it as a script, open it as a notebook (`# %%` cells), or read the page that the docs make of it. It needs no
download.
"""

# %% [markdown]
# # Evaluating: two explanations disagree
#
# The same network, the same image, three propagation rules, three answers. Which one should go into the paper? Looks do
# not decide that. But an explanation is a claim about what the network would do *without* some of its neurons, and the
# network can be asked.
#
# The network is the one that the package carries (`nrm demo`), trained on scikit-learn's digits.

# %%
import copy

import matplotlib.pyplot as plt
import torch

import nrm
from nrm.demo import digits, read_digits
from nrm.demo.digits import LEARNED

model, _, _ = digits()
images, classes = read_digits()
images, classes = images[LEARNED:], classes[LEARNED:]  # those it has not learned from
with torch.no_grad():
    right = (model(images).argmax(1) == classes).nonzero()[:40, 0]
RULES = {"LRP-0": "lrp-0", "gamma": nrm.Gamma(0.25), "z+": nrm.ZPlus()}
measures = {
    name: nrm.measure(model, images[right], target=classes[right], rules=rules, bias="input")
    for name, rules in RULES.items()
}

# %% [markdown]
# Heat maps of three digits, and the most relevant pair of channels of two layers in each of them:

# %%
rows = [[1 - images[right[i]].expand(3, -1, -1), *(R(R.input)[i] for R in measures.values())] for i in (0, 3, 5)]
shown = [f"digit {int(classes[right[i]])}" for i in (0, 3, 5)]
figure = nrm.plot.montage(rows, names=shown, columns=["", *measures], smooth=False)
low, high = nrm.layer("relu2"), nrm.layer("relu3")
for name, R in measures.items():
    best = R.flows(low.channels, high.channels, k=1)
    print(f"{name:>6}:", "; ".join(" and ".join(str(n) for _, n in best[i][0].blocks) for i in (0, 3, 5)))

# %% [markdown]
# ## Take it away and look
#
# Take the pair that gamma finds in the first image, and remove one channel, the other, and both. What only both
# together do is f − f(without a) − f(without b) + f(without both): their **joint contribution**. Relevance is a share
# of the output f, so it is compared after multiplying by f.

# %%
R = measures["gamma"].sample(0)
a, b = R.flows(low.channels, high.channels, k=1)[0][0]
target = int(classes[right[0]])
print(f"f = {float(R.value):.2f}")
for some in ((a,), (b,), (a, b)):
    left = float(nrm.evaluate.remove(R, *some)[0, target])
    print(f"f without {' and '.join(map(str, some))}: {left:.2f}")
print(f"joint contribution   {float(nrm.evaluate.contribution(R, a, b)):.3f}")
print(f"f times R(a, b)      {float(nrm.evaluate.scores(R, a, b)):.3f}")

# %% [markdown]
# ## All pairs
#
# Every pair of channels at once, 16 x 32 of them. The network is replayed from its recorded forward pass, so that this
# takes as long as a few forward passes, not 512.

# %%
figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
for ax, (name, R) in zip(axes, measures.items(), strict=True):
    S = R.sample(0)
    lost = nrm.evaluate.contribution(S, low.channels, high.channels)
    claimed = nrm.evaluate.scores(S, low.channels, high.channels)
    nrm.plot.scatter(lost, claimed, ax=ax, title=name)

# %% [markdown]
# ## Many images, and rivals
#
# One image proves nothing. `compare` correlates contribution and score in every sample, for the measure and for
# rivals that cost less: the sum of both channels' own relevance (`lrp`), the loss of output when both are removed
# (`occlusion`), their activations, and chance. Scores of one's own join in; here it is the product of both channels'
# relevances, which would be right if they had nothing to do with each other.

# %%
found = {}
for name, R in measures.items():
    product = R(low.channels)[:, :, None] * R(high.channels)[:, None, :]
    found[name] = nrm.evaluate.compare(R, low.channels, high.channels, scores={"product": product})
print("correlation with the joint contribution, mean over 40 images and its 95 % interval")
print(" " * 11, *(f"{name:^21}" for name in found))
for method in found["LRP-0"].methods:
    cells = []
    for comparison in found.values():
        each = comparison[method].pearson
        begin, end = nrm.evaluate.interval(each)
        cells.append(f"{float(each.mean()):6.2f} [{begin:5.2f}, {end:5.2f}]")
    print(f"{method:>11}", *cells)
assert float(found["LRP-0"]["nrm"].pearson.mean()) > float(found["LRP-0"]["lrp"].pearson.mean())

# %% [markdown]
# Joint relevance is ahead of every rival under every rule; and the rule matters: what
# z+ leaves out, all that argues *against* the digit, is part of the truth. [Choosing rules](../docs/rules.md) has the
# same table for VGG16 and ResNet18, and what LRP-0 costs there.
#
# ## Only the largest
#
# A correlation looks at all pairs. Whoever reads an explanation looks at the first ten. `SC_k` is the sum of the
# contributions of the k pairs with the highest scores: the steeper a curve rises, the better the first ones are. All
# end at the same sum, that of all pairs.

# %%
curves = {name: one["nrm"].sc for name, one in found.items()}
curves |= {name: found["gamma"][name].sc for name in ("lrp", "random")}
ax = nrm.plot.sc_curves(found["gamma"].k, curves)

# %% [markdown]
# ## What does "removed" mean?
#
# A channel that is 0 everywhere may be something that the network has never seen. Its mean over the batch
# (`value="mean"`) or its values in another image (`"resample"`) are closer to what it knows, and they ask something
# else: not "what does this channel do" but "what does it do *more here than elsewhere*".

# %%
values = ("zero", "mean", "resample")
judged = {
    (name, value): nrm.evaluate.compare(R, low.channels, high.channels, value=value, k=())
    for name, R in measures.items()
    for value in values
}
figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
for shift, name in enumerate([*measures, "occlusion"]):
    own, method = (name, "nrm") if name in measures else ("gamma", name)
    bars = [float(judged[own, value][method].pearson.mean()) for value in values]
    ax.bar([place + 0.2 * shift - 0.3 for place in range(3)], bars, 0.2, label=name)
ax.set(xticks=range(3), xticklabels=values, ylabel="mean correlation")
ax.legend(fontsize=8)

# %% [markdown]
# LRP-0 is a statement about removal to zero, nearly exact here, and loses its lead when channels keep their mean.
# Against values from other images every rule does badly, as relevance does not know what other images look like; there
# occlusion, which does look, is better. So say which removal you mean when you say "faithful".
#
# ## A control
#
# An explanation that stays the same when the network is broken explains the image, not the network. Here the last
# layer is redrawn at random: how much of the table of pairs survives?

# %%
broken = copy.deepcopy(model)
torch.manual_seed(0)
broken.fc.reset_parameters()
for name, R in measures.items():
    S = nrm.measure(broken, images[right], target=classes[right], rules=RULES[name], bias="input")
    pairs = [nrm.evaluate.scores(M, low.channels, high.channels) for M in (R, S)]
    print(f"{name:>6}: correlation with the broken network's table {float(nrm.evaluate.pearson(*pairs).mean()):5.2f}")

# %% [markdown]
# ## On a model of yours
#
# - `nrm.evaluate.compare(R, a.channels, b.channels)` takes any partitions of any layers: heads, clusters, tokens,
#   atoms. Tables too large to keep are worked off part by part.
# - Take the class that is *explained* as the target, and look at `compare`'s count of samples whose output is not
#   positive: there a share means the opposite.
# - Give intervals over samples, not over pairs: pairs of one image are not independent.
# - Scores of other tools go into `scores=`, in the shape of `R(...)`.
#
# All calls: [judging by intervention](../docs/evaluate.md). The paper's own experiments, repeated by one command each:
# [reproductions](../docs/reproductions.md).

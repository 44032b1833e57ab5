"""Images: which channels and which places of a picture worked together. A tutorial in cells; it needs no download.

Run it as a script, open it as a notebook (`# %%` cells), or read the page that the docs make of it.
"""

# %% [markdown]
# # Images: channels and clusters
#
# A heat map says *where* a convolutional network looked. This tutorial asks further: which channels of two layers
# worked together, where in the picture, which *places* of one layer fed which places of the next, and what the
# largest of all these flows are. The network has the layout of VGG (convolutions in blocks, pooling between them) and
# is trained here on scikit-learn's digits within seconds. At the end the same lines run on VGG16.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn

import nrm

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
classes = torch.tensor(digits.target)
images = nn.functional.interpolate(images, (16, 16), mode="bilinear")


def block(inside, outside):
    return nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU()


model = nn.Sequential()
model.features = nn.Sequential(
    *block(1, 12), *block(12, 12), nn.MaxPool2d(2), *block(12, 24), *block(24, 24), nn.MaxPool2d(2)
)
model.flatten = nn.Flatten()
model.classifier = nn.Sequential(nn.Linear(24 * 16, 32), nn.ReLU(), nn.Linear(32, 10))

optimizer = torch.optim.Adam(model.parameters(), 3e-3)
for _ in range(2):
    for some in torch.randperm(1500).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[some]), classes[some]).backward()
        optimizer.step()
model.eval()
with torch.no_grad():
    correct = model(images[1500:]).argmax(1) == classes[1500:]
print(f"{correct.float().mean():.0%} of the other digits are read correctly")

# %% [markdown]
# ## One measure
#
# `epsilon-plus-flat` is what the paper uses for VGG16: positive contributions in the convolutions, a flat first
# layer. All questions below go to this one measure, and share its sweep.

# %%
sample = next(i for i in range(1500, 1797) if int(classes[i]) == 4 and bool(correct[i - 1500]))
x0 = images[sample : sample + 1]
R = nrm.measure(model, x0, rules="epsilon-plus-flat", labels={"output": [f"digit {i}" for i in range(10)]})
print(R)
x, low, high = R.input, R["features.6"], R["features.8"]

# %% [markdown]
# ## Channels, one by one and in pairs
#
# `R(high.channels)` is the relevance of every channel. Two partitions give the table of all pairs, by one
# contraction; the strongest pairs come with their heat maps: the walks that pass both channels, back to the pixels.

# %%
single, pairs = R(high.channels)[0], R(low.channels, high.channels)[0]
assert torch.allclose(pairs.sum(0), single, atol=1e-4)  # marginals agree
flows = R.flows(low.channels, high.channels, k=3)
print(flows)

# %%
picture = x0[0].expand(3, -1, -1)
row = [1 - picture, R(x)[0], *(R(x, *flow)[0] for flow in flows[0])]
columns = ["", "the decision", *(" and ".join(f"channel {n}" for _, n in flow.blocks) for flow in flows[0])]
figure = nrm.plot.montage([row], names=["digit 4"], columns=columns, smooth=False)

# %% [markdown]
# A pair can carry more than the product of its channels suggests, or less. The conditional relevance says it
# directly: which lower channels does the strongest upper channel listen to?

# %%
top = int(single.argmax())
share = R(low.channels, given=high.channel(top))[0]
best = share.argsort(descending=True)[:3].tolist()
print(f"of what flows through channel {top} of features.8:")
for i in best:
    everywhere = float(R(low.channel(i)))
    print(f"  {share[i]:5.1%} came through channel {i} of features.6, which has {everywhere:.1%} of everything")

# %% [markdown]
# ## Clusters of places
#
# Positions whose activations are alike form parts of the picture: strokes, corners, background. `nrm.cluster` groups
# them by k-means, and the groups are a partition like any other. A flow picture shows how the parts of one layer feed
# those of the next.

# %%
parts = [nrm.cluster(R, name, k=4) for name in ("features.3", "features.8")]
ax = nrm.plot.flows(R, *parts, R["classifier.1"].channels, R.output, nodes=5)

# %%
best = R.flows(*parts, k=3)
print(best)
row = [1 - picture, *(R(x, *flow)[0] for flow in best[0])]
columns = ["", *(f"{flow.relevance:.0%}" for flow in best[0])]
figure = nrm.plot.montage([row], names=["flows of parts"], columns=columns, smooth=False)

# %% [markdown]
# ## Is it true?
#
# Relevance of pairs is a claim about what happens when both are removed. `nrm.evaluate` does remove them, all pairs
# at once, and compares; the sum of two channels' own relevances is the natural rival.

# %%
found = nrm.evaluate.compare(R, low.channels, high.channels)
print(found)
assert float(found["nrm"].pearson.mean()) > float(found["lrp"].pearson.mean())

# %% [markdown]
# ## The certificate

# %%
print(R.check())

# %% [markdown]
# ## The same on VGG16
#
# Nothing changes but the model, the picture and the names of layers; all 262,144 pairs of channels take about as long
# as the heat map (`pip install "nrm[vision]"`; the weights are downloaded by torchvision):
#
# ```py
# from torchvision.models import VGG16_Weights, vgg16
#
# weights = VGG16_Weights.DEFAULT
# model, image = vgg16(weights=weights).eval(), weights.transforms()(photo)[None]
# R = nrm.measure(model, image, rules="epsilon-plus-flat", labels={"output": weights.meta["categories"]})
# R.flows(R["features.26"].channels, R["features.28"].channels, k=5)  # pairs of channels
# parts = [nrm.cluster(R, name, k=6) for name in ("features.8", "features.15", "features.22", "features.29")]
# R.flows(*parts, k=5)  # chains of clusters over four blocks
# ```
#
# The picture on the start page is made so. Next: [sequences](sequence.py), [asking questions](../docs/questions.md),
# [choosing rules](../docs/rules.md).

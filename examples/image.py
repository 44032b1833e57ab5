"""Images: which channels and which places of a picture worked together. A tutorial in cells; it needs no download, and
goes on with VGG16 where its weights are at hand.

Run it as a script, open it as a notebook (`# %%` cells), or read the page that the docs make of it.
"""

# %% [markdown]
# # Images: channels and clusters, from a small network to VGG16
#
# A heat map says *where* a convolutional network looked. This tutorial asks further: which channels of two layers
# worked together, where in the picture, which *places* of one layer fed which places of the next, and what the
# largest of all these flows are. The network has the layout of VGG (convolutions in blocks, pooling between them) and
# is trained here on scikit-learn's digits within seconds. At the end the same lines run on VGG16 and a photo, if its
# weights are at hand.

# %%
import os
import pathlib

import torch
from sklearn.datasets import load_digits, load_sample_image
from torch import nn

import nrm
from nrm.reproduce.networks import VGG, load

# %%
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
for _ in range(4):
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
columns = ["", "the decision", *("channels " + ", ".join(str(n) for _, n in flow.blocks) for flow in flows[0])]
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
# ## VGG16
#
# Nothing changes but the model, the picture and the names of layers. VGG16 is taken as torchvision has downloaded it
# before (`torchvision.models.vgg16(weights="DEFAULT")`, half a gigabyte, once), or with the ten classes of Imagenette
# from `$NRM_DATA/vgg16-imagenette`. The photo is one that scikit-learn ships.


# %%
def read_vgg16():
    """VGG16 and the names of its classes, or None where its weights are not at hand."""
    file = pathlib.Path(os.environ.get("NRM_DATA", "data"), "vgg16-imagenette", "vgg16_imagenette.safetensors")
    if file.exists():
        names = "tench springer cassette-player chain-saw church horn garbage-truck gas-pump golf-ball parachute"
        return load(VGG(512, 10), file), names.split()
    file = pathlib.Path(torch.hub.get_dir(), "checkpoints", "vgg16-397923af.pth")
    if file.exists():
        from torchvision.models import VGG16_Weights, vgg16

        return vgg16(weights=VGG16_Weights.DEFAULT).eval(), VGG16_Weights.DEFAULT.meta["categories"]
    return None


photo = torch.tensor(load_sample_image("china.jpg").copy()).permute(2, 0, 1)[None, :, :, 106:533] / 255
photo = nn.functional.interpolate(photo, (224, 224), mode="bilinear", antialias=True)
mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 1, 3, 1, 1)
found = read_vgg16()
if found:
    vgg, names = found
    V = nrm.measure(vgg, (photo - mean) / deviation, rules="epsilon-plus-flat", labels={"output": names})
    print(V)
else:
    print("VGG16's weights are not here: the cells below say nothing, and the pictures below them were made before.")

# %% [markdown]
# **Channels.** All 512 x 512 pairs of `features.26` and `features.28` take about as long as the heat map. Where do the
# strongest of them look?

# %%
if found:
    pair = V["features.26"].channels, V["features.28"].channels
    print(V.flows(*pair, k=5))
    figure = nrm.plot.strips(V, photo[0], *pair, k=2)

# %% [markdown]
# ![The strongest pairs of channels of two photos, and where else they count](../docs/images/reproduce-pairs.png)
#
# *Two other photos: all walks, those through the strongest pair of channels with its share, and the photos of
# Imagenette in which the same pair counts most ([RelMax](relmax.py)). What both channels carry together is the mottled
# fur, and the front of a cassette player.*
#
# **Clusters.** A channel looks at many things; places with like activations are parts of the scene. Four blocks, five
# clusters each, and the chains through all of them:

# %%
if found:
    parts = [nrm.cluster(V, name, k=5) for name in ("features.8", "features.15", "features.22", "features.29")]
    print(V.flows(*parts, k=3))
    ax = nrm.plot.flows(V, *parts, V.output)

# %% [markdown]
# ![How VGG16's decision about the photo flowed through clusters of positions in four layers](../docs/images/start.png)
#
# *The same as a finished picture (`make start`), with the head for Imagenette: VGG16 takes the pagoda for a church.
# Above, three of the chains, back on the photo: trees and sky, the roofs, the lake.*
#
# What the paper found with channels and clusters of VGG16, over many images and with removal as the judge, is repeated
# in [reproductions](../docs/reproductions.md).
#
# ## On a network of yours
#
# - Layers whose channels mean something are the outputs of activation functions and of blocks. Two of them with one
#   convolution between (`features.26` and `features.28`) make tables cheap; `R.plan(...)` tells.
# - `epsilon-plus-flat` for pictures to look at; `{nn.Conv2d: nrm.Gamma(0.25), "*": "lrp-0"}` with `bias="input"` to
#   rank interactions ([evaluating](evaluate.py) shows why).
# - A pair is a claim about one image. Which images a channel or a pair is used for: [RelMax](relmax.py).
#
# Next: [sequences](sequence.py), [asking questions](../docs/questions.md), [choosing rules](../docs/rules.md).
# The photo is by danielbuechele on Flickr (CC BY 2.0).

"""RelMax at scale: what is a channel used for? A job over a data set that survives being stopped. A tutorial in cells.

Run it as a script, open it as a notebook (`# %%` cells), or read the page that the docs make of it. It needs no
download.
"""

# %% [markdown]
# # RelMax at scale: what is a channel for?
#
# A common way to name a channel is to look at the images that excite it most. But a channel can be loud where nobody
# listens. RelMax looks at the images in whose *decision* it has the largest part, and says where in them. That takes
# an explanation of every image of a data set, so it is a job: it has to survive being stopped, and its results are
# wanted again later.
#
# The network is the one that the package carries (`nrm demo`), the data are scikit-learn's 1,797 digits. Nothing
# changes for a large one but the time. Stores need `pip install "nrm[store]"`.

# %%
import pathlib
import tempfile

import matplotlib.pyplot as plt
import torch

import nrm
from nrm.demo import digits, read_digits

model, _, _ = digits()
images, classes = read_digits()
data = torch.utils.data.TensorDataset(images, classes)
low, high = nrm.layer("relu2"), nrm.layer("relu3")

# %% [markdown]
# ## One job, several questions
#
# Questions are those of `R(...)`, written before any measure exists. Every image is explained once, for its label,
# and answers all of them: each channel of two layers, and every pair of channels. The first call does only two of the
# eight shards, as if it had been killed.

# %%
folder = pathlib.Path(tempfile.mkdtemp()) / "digits-store"
asked = (low.channels, high.channels, (low.channels, high.channels))
job = {"target": "label", "k": 9, "shard_size": 256, "rules": nrm.Gamma(0.25), "bias": "input", "progress": False}
part = nrm.relmax(model, data, *asked, store=folder, shards=range(2), **job)
print(part)

# %% [markdown]
# The same call without `shards=` goes on where that one ended. A shard is in the store as a whole or not at all, and
# the result is the same to the last bit as if nothing had happened. A call with another model, question or rule is
# refused, so that no store ever mixes two things.

# %%
found = nrm.relmax(model, data, *asked, store=folder, **job)
print(found)
try:
    nrm.relmax(model, data, *asked, store=folder, **(job | {"rules": nrm.ZPlus()}))
except nrm.NrmError as error:
    print("with another rule:", str(error).splitlines()[0])

# %% [markdown]
# ## Loud, or used?
#
# Here is channel 31 of `relu3`, the last layer before the classifier, by activation and by relevance. Pictures are cut
# to what the neuron at its peak can see, and have the number of the sample and its score above them.

# %%
channel = high.channel(31)
options = {"model": model, "dataset": data, "rules": job["rules"], "bias": job["bias"]}
figure = nrm.plot.gallery(found, channel, by="activation", title="most active", **options)

# %%
figure = nrm.plot.gallery(found, channel, by="relevance", title="most relevant", **options)
for by in ("activation", "relevance"):
    print(f"digits with the most {by}:", [int(classes[hit.sample]) for hit in found.top(channel, by=by)])

# %% [markdown]
# It is loudest in ones and sixes, and counts most in decisions for fours, eights and nines. Whoever names it after the
# first row is wrong about what the network does with it.
#
# ## Which class uses which channel?
#
# A job keeps statistics of all samples and of every class, not only the best ones.

# %%
table = torch.stack([torch.as_tensor(found.statistics(high.channels, target=c)["mean"]) for c in range(10)])
bound = float(table.abs().max())
figure, ax = plt.subplots(figsize=(9, 3.2), layout="constrained")
shown = ax.imshow(table.numpy(), cmap="RdBu_r", vmin=-bound, vmax=bound, aspect="auto")
ax.set(xlabel="channel of relu3", ylabel="digit", xticks=range(0, 32, 2), yticks=range(10))
figure.colorbar(shown, format="{x:.0%}", label="mean share of the decision")
several = int(((table > 0.08).sum(0) > 1).sum())
print(f"{several} of 32 channels have more than 8 % of the decisions for more than one digit")

# %% [markdown]
# ## Pairs
#
# A channel that serves several digits may serve them together with different others. The pairs with the largest mean
# share for a digit come from the same job:

# %%
for digit in (3, 4, 8):
    best = ", ".join(f"{a} and {b} ({share:.1%})" for (a, b), share in found.best(*asked[2], k=3, target=digit))
    print(f"digit {digit}: {best}")
(a, b), _ = found.best(*asked[2], k=1, target=8)[0]
figure = nrm.plot.gallery(
    found,
    low.channel(a),
    high.channel(b),
    (low.channel(a), high.channel(b)),
    k=8,
    **options,
)

# %% [markdown]
# Each row of the sheet is a question: the channel below, the channel above, and walks through both.
#
# ## Later, and elsewhere
#
# The store is a folder of parquet files with a manifest. It opens without the model and the data, also while a job is
# still writing, and answers SQL.

# %%
store = nrm.open_store(folder)
print(store.top(high.channel(3), k=3))
print("digits with the largest mean logit, by SQL:")
for digit, count, logit in store.sql(
    "select target, count(*), avg(value) as logit from samples group by target order by logit desc limit 3"
).fetchall():
    print(f"  digit {digit}: {count} samples, {logit:.1f}")

# %% [markdown]
# ## At scale
#
# ```py
# nrm.relmax(model, "imagenet/train", a.channels, (a.channels, b.channels), transform=weights.transforms(),
#            target="label", class_names=classes, store="vgg16-store", shard_size=4096, workers=8, max_errors=100)
# ```
#
# - **A folder of images** with one folder per class is a data set; so are those of torch and Hugging Face. Its classes
#   are matched to outputs by name, never by order: `classes` is `{"n01440764": 0, ...}`.
# - **Workers**: `workers=8` are processes on this machine (a script then needs `if __name__ == "__main__":`),
#   `engine="ray"` the actors of a cluster. Machines without a cluster take `shards=` each, and
#   `nrm.jobs.merge_stores` makes one store of theirs. Results do not depend on any of that.
# - **Large shards** for large jobs: writing and folding cost per shard, and a kill loses at most one per worker.
# - **Broken files** are left out up to `max_errors`, and listed in `found.errors`.
# - **Too many pairs**: 512 x 512 blocks cannot keep 40 samples each; `rows=` bounds them in all, and a list that may be
#   incomplete says so.
# - **Only statistics**: `nrm.stream(model, loader, {"pairs": (a.channels, b.channels)})` keeps means and variances by
#   class.
# - From the shell: `python -m nrm relmax torchvision:vgg16 photos --ask features.28 --store vgg16-store`.
#
# What a job costs, with an estimate for ImageNet on 8 and 64 GPUs: [data sets](../docs/relmax.md#what-it-costs).

"""An own rule for an own op: layers that no library knows, and a rule that no paper has. A tutorial in cells.

Run it as a script, open it as a notebook (`# %%` cells), or read the page that the docs make of it. It needs no
download.
"""

# %% [markdown]
# # An own rule for an own op
#
# Research code has layers that no library knows, and ideas about relevance that no paper has. Both are a few lines:
# an **op** says *what* a function computes, a **rule** says *how* a linear step shares relevance among its inputs. The
# two are independent, so that a new rule works for all layers, and a new layer with all rules. An op that is like no
# other gets a **family**, which says what its steps do to relevance.
#
# Here the op is a dense layer whose weights are stored in eight bits, and the rule asks what should become of negative
# contributions. The network is the one that the package carries (`nrm demo`).

# %%
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from torch import nn

import nrm
from nrm.capture import Linear, OwnOp
from nrm.demo import digits, read_digits
from nrm.demo.digits import LEARNED
from nrm.operators import Dense
from nrm.rules import Factor
from nrm.steps import Family, family
from nrm.testing import check_measure, check_op, check_rule

model, _, _ = digits()
images, classes = read_digits()
images, classes = images[LEARNED:], classes[LEARNED:]  # those it has not learned from

# %% [markdown]
# ## An op
#
# Kernels of one's own are usually made known to torch like this. The layer below takes the place of the network's
# classifier.


# %%
@torch.library.custom_op("tutorial::quantized_linear", mutates_args=())
def quantized_linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x @ (weight.to(x.dtype) * scale.to(x.dtype)).T


class Quantized(nn.Module):
    """A dense layer with a byte per weight, and a scale per output."""

    def __init__(self, layer):
        super().__init__()
        self.register_buffer("scale", layer.weight.detach().abs().amax(1, keepdim=True) / 127)
        self.register_buffer("weight", (layer.weight.detach() / self.scale).round().to(torch.int8))
        self.bias = layer.bias

    def forward(self, x):
        return quantized_linear(x, self.weight, self.scale) + self.bias


exact = model.fc
model.fc = Quantized(exact)
with torch.no_grad():
    right = model(images).argmax(1) == classes
print(f"{right.float().mean():.0%} of {len(images)} digits are read correctly")

# %% [markdown]
# What a function means for relevance is never guessed. The forward pass is recorded, and the complaint comes where
# relevance would have to pass the unknown op, with its place in the source.

# %%
some = right.nonzero()[:40, 0]
try:
    R = nrm.measure(model, images[some], target=classes[some])
    R(R.input)
except nrm.CaptureError as error:
    print(str(error).splitlines()[0])

# %% [markdown]
# `nrm.register` tells how a call is read. For functions that are elementwise, copy entries, or are linear and known as
# a whole, a word is enough (`"activation"`, `"move"`, `"linear"`: [own ops](../docs/own-ops.md#an-op)). Rules that
# look at single weights need the weights: a *builder* gets the recorded call with its arguments, and returns the
# linear step that it is.


# %%
def read_quantized(call, x, weight, scale):
    step = Dense(x.shape, weight.to(x.dtype) * scale.to(x.dtype))
    return call.one(Linear(step, "linear"), x)


nrm.register(quantized_linear, read_quantized)

# %% [markdown]
# Test it as ours are tested: `check_op` runs the function inside a small network, compares what was recorded with what
# it computes, and looks whether mass is kept in both directions. Then compare with the layer that it replaces.

# %%
check_op(lambda h: quantized_linear(h, torch.arange(-6, 6).reshape(3, 4), torch.full((3, 1), 0.125)), torch.randn(2, 4))

R = nrm.measure(model, images[some], target=classes[some], rules="lrp-0", bias="input")
model.fc = exact
E = nrm.measure(model, images[some], target=classes[some], rules="lrp-0", bias="input")
model.fc = Quantized(exact)
print(R.layers)
alike = nrm.evaluate.pearson(R(R.input).flatten(1), E(E.input).flatten(1))
print(f"heat maps of bytes and of floats correlate with {alike.mean():.4f}")

# %% [markdown]
# ## A rule
#
# LRP-0 takes contributions *hW* as they are, z+ the positive ones only. What if negative ones counted by their *size*,
# a bit? One family has it all,
#
# $$T_{ij} = |h_i W_{ij}| + c\, h_i W_{ij},$$
#
# with c = 0 for sizes alone, c = 1 for z+ (times two, which normalizing cancels), and large c for LRP-0.
#
# A rule says its entries as a sum of factors *a V*: activations of its own, times the step's map with changed weights.
# Column sums, both directions of a sweep and tables of pairs follow from that; for dense layers, convolutions and
# whatever else is linear. It also states what it is: entries *vanish* with the input, so that what travels on below is
# a density, relevance per unit of value; and they need not have the *sign* of *hW*.


# %%
@dataclass(frozen=True, repr=False)
class Tilted(nrm.Rule):
    """``|h W| + c h W``: contributions by size, tilted towards those that are positive."""

    c: float = 0.5
    keys = (("sign", 1), ("sign", -1))  # W and -W have entries of their own
    vanishes = True
    signed = False

    def factors(self, key, map, h, nonnegative):
        sign = key[1]
        if nonnegative:  # a shortcut: one factor instead of two
            return [Factor(h, map.reweight(lambda w: w.abs() + self.c * sign * w))]
        return [Factor(h.abs(), map.reweight(torch.abs)), Factor(self.c * sign * h, map)]

    def bias(self, b):
        return (b.abs() + self.c * b,)  # a weight from a neuron of activation 1


check_rule(Tilted(0.0))
check_rule(Tilted(2.0))

# %% [markdown]
# `keys` are for layers under a scale, such as a batch norm that is folded into them: a negative scale turns *W* into
# *-W*, and then the rule is asked for the other key. Forgetting that is the classic mistake, and `check_rule` finds it:


# %%
class Careless(Tilted):
    def factors(self, key, map, h, nonnegative):
        return super().factors(("sign", 1), map, h, nonnegative)


try:
    check_rule(Careless(1.0))
except AssertionError as error:
    print(error)

# %% [markdown]
# ## What does it say?
#
# A rule is a value and goes where rules go: for all layers, for a kind of layer, or for a name. Here it is in the
# convolutions and in our own layer.

# %%
tilts = (0.0, 0.5, 1.0, 2.0, 8.0)
measures = {}
for c in tilts:
    rules = {nn.Conv2d: Tilted(c), "fc": Tilted(c), "*": "lrp-0"}
    measures[c] = nrm.measure(model, images[some], target=classes[some], rules=rules, bias="input")
rows = [[1 - images[some[i]].expand(3, -1, -1), *(M(M.input)[i] for M in measures.values())] for i in (0, 3)]
shown = [f"digit {int(classes[some[i]])}" for i in (0, 3)]
figure = nrm.plot.montage(rows, names=shown, columns=["", *(f"c = {c:g}" for c in tilts)], smooth=False)
print(measures[1.0])

# %% [markdown]
# ## Is it any good?
#
# [Evaluating explanations](evaluate.py) told how to ask: does the relevance of pairs agree with what happens when both
# channels are removed? Between sizes (left) and LRP-0 (right) the answer is plain.

# %%
low, high = nrm.layer("relu2"), nrm.layer("relu3")


def faithful(R):
    return float(nrm.evaluate.compare(R, low.channels, high.channels, methods=["nrm"], k=())["nrm"].pearson.mean())


found = {c: faithful(M) for c, M in measures.items()}
others = {"z+": nrm.ZPlus(), "gamma 0.25": nrm.Gamma(0.25), "LRP-0": nrm.LRP0()}
figure, ax = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
ax.plot(list(found), list(found.values()), "o-", color="tab:red", label="tilted")
for (name, rule), style in zip(others.items(), (":", "--", "-"), strict=True):
    known = faithful(nrm.measure(model, images[some], target=classes[some], rules=rule, bias="input"))
    ax.axhline(known, color="0.4", linestyle=style, linewidth=1, label=name)
ax.set(xlabel="c", ylabel="correlation with removal")
ax.legend(fontsize=8)
assert found[0.0] < found[1.0] < found[8.0]

# %% [markdown]
# Negative contributions are not just small positive ones: counting them by size is worse than leaving them out, and
# leaving them out is worse than counting them as negative.
#
# ## An op like no other
#
# A pair of filters that answer to the two directions of an edge, and the length of the two answers together,
# $y = \sqrt{u^2 + v^2}$: the strength of an edge, whatever its direction. That is no linear step, no product, no
# function of one tensor. But $y = (u / y)\, u + (v / y)\, v$, which says what each filter has in it. Such an op is a
# class, which says what it computes and where its entries come from, and what it does to relevance is a **family**: it
# links tensors by maps.


# %%
class Strength(OwnOp):
    """``y = sqrt(u^2 + v^2)``, entry by entry."""

    entrywise = True
    holds = False  # nothing in it was computed from its inputs

    def compute(self, below):
        return torch.hypot(*below)


@family(Strength)
class Strengths(Family):
    """``y = (u / y) u + (v / y) v``."""

    def connect(self, network, node):
        i, y = node.index, node.value
        some = torch.where(y == 0, 1.0, y)
        for j in node.inputs:
            u = network.tape.nodes[j].value
            entry = u / some  # from value to value
            if network.is_one(j):  # a rule below wants relevance itself: from 1 to value
                entry = u * entry
            if network.is_one(i):  # a rule above gives relevance itself: from 1 to 1
                entry = torch.where(y == 0, 0.5, entry / some)
            network.link(network.plain(i), network.plain(j), network.local(i, j, post=entry))


nrm.register("hypot", lambda call, u, v: call.one(Strength(), u, v))
check_op(lambda h: torch.hypot(h, h.flip(1)), torch.randn(2, 4))

# %% [markdown]
# The one law of a family is that the maps of a step carry the units of what it reads to its own unit, a unit being the
# value (or 1, where a rule deals in relevance itself). Everything else follows: joint questions, flows, single walks,
# the certificate. Here is a classifier of edge strengths, whose last layer is fitted by least squares.


# %%
class Edges(nn.Module):
    """The strength of edges in eight by eight pixels, and what class they speak for."""

    def __init__(self):
        super().__init__()
        self.across, self.down = (nn.Conv2d(1, 1, 3, padding=1, bias=False) for _ in range(2))
        sobel = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]]) / 8
        self.across.weight.data, self.down.weight.data = sobel[None, None], sobel.T[None, None].clone()
        self.pool, self.head = nn.AvgPool2d(2), nn.Linear(16, 10, bias=False)

    def forward(self, x):
        return self.head(self.pool(torch.hypot(self.across(x), self.down(x))).flatten(1))


edges = Edges().eval()
every, labels = read_digits()
with torch.no_grad():
    found_edges = edges.pool(torch.hypot(edges.across(every), edges.down(every))).flatten(1)
    wanted = nn.functional.one_hot(labels[:LEARNED], 10).float()
    edges.head.weight.data = torch.linalg.lstsq(found_edges[:LEARNED], wanted).solution.T
    known = edges(images).argmax(1) == classes
print(f"{known.float().mean():.0%} of {len(images)} digits are read correctly")

E = nrm.measure(edges, images[known][:4], rules="lrp-0")
check_measure(E, tolerance=1e-4)  # float32
print("across, down:", [[round(float(E(E[name].all)[i]), 2) for name in ("across", "down")] for i in range(4)])
one = E.sample(0)
print(one.flows(one["across"].positions, one["pool"].positions, k=3))
print(one.walks(k=2))
print("lost without across:", [round(float(v), 2) for v in nrm.evaluate.contribution(E, E["across"].all)])

# %% [markdown]
# ## On a model of yours
#
# - Begin with `nrm.measure` on it as it is. Most networks need nothing; the complaint names the op if one does.
# - `check_op` for the op, `check_rule` for the rule, and `check_measure(R)` for the whole network in float64.
# - A rule that is frozen and has its parameters as fields prints itself in `repr(R)` and in stores, and is compared by
#   value: that is what `@dataclass(frozen=True, repr=False)` is for.
# - Builders for convolutions return `Linear(Convolution(...), "conv")`; the kind decides which rule of a composite
#   the step gets.
#
# All readings, keys and factors: [own rules and ops](../docs/own-ops.md), [reference](../docs/reference/rules.md).

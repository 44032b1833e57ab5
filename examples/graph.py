"""Graphs: which atoms and bonds make a molecule mutagenic, as a network trained on MUTAG sees it? A tutorial in cells.

Run it as a script, open it as a notebook (`# %%` cells), or read the page that the docs make of it. MUTAG is taken from
``$NRM_DATA/graphs/MUTAG``, or downloaded; where neither is possible, molecules of its kind are made up.
"""

# %% [markdown]
# # Graphs: the molecules of MUTAG
#
# MUTAG is the classic of explained graph networks: 188 molecules, labelled by whether they are mutagenic. "The nitro
# groups do it", says the usual picture. Does a network that was trained on these molecules think so too? We ask for
# the atoms, the bonds, the walks and the groups that its decision flowed through.
#
# MUTAG comes from a folder of yours (`$NRM_DATA/graphs/MUTAG`, in the text format of TUDataset), or is downloaded by
# PyTorch Geometric. Where neither is possible, molecules of its kind are made up, so that the page runs anywhere.

# %%
import os
import pathlib
import random
import tempfile

import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import TUDataset
from torch_geometric.nn import GINConv, global_add_pool

import nrm

KINDS = ["C", "N", "O", "F", "I", "Cl", "Br"]  # in the order of MUTAG


def read_molecules():
    """MUTAG from a folder or the network, else molecules of its kind."""
    folder = pathlib.Path(os.environ.get("NRM_DATA", "data"), "graphs", "MUTAG")

    class Mutag(TUDataset):
        if folder.exists():
            raw_dir = str(folder)

    try:
        with tempfile.TemporaryDirectory() as home:
            found = list(Mutag(home, "MUTAG"))
        print(f"{len(found)} molecules of MUTAG")
    except Exception as error:  # no network, or something in between
        found = [made_up(random.Random(i)) for i in range(188)]
        print(f"There is no MUTAG here ({type(error).__name__}): these are {len(found)} made-up molecules of its kind.")
    return found


def made_up(rng):
    """One ring with a tail, or two or three fused rings (then it is mutagenic), with a nitro group and others."""
    atoms, bonds = ["C"] * 6, [(i, (i + 1) % 6) for i in range(6)]
    more = rng.choice([0, 0, 1, 2])
    for _ in range(more):  # a ring on the last bond of the chain of rings
        a, b, start = len(atoms) - 3, len(atoms) - 2, len(atoms)
        bonds += [(b, start), (start, start + 1), (start + 1, start + 2), (start + 2, start + 3), (start + 3, a)]
        atoms += ["C"] * 4
    free = [i for i in range(len(atoms)) if sum(i in bond for bond in bonds) == 2]
    for place, group in zip(rng.sample(free, 3), ["NOO", *rng.choices(["N", "F", "Cl", "O", "CC"], k=2)], strict=True):
        start = len(atoms)
        names = ["Cl"] if group == "Cl" else list(group)
        bonds += [(place, start), *((start, start + i) for i in range(1, len(names)))]
        atoms += names
    x = torch.eye(len(KINDS))[[KINDS.index(atom) for atom in atoms]]
    edges = torch.tensor(bonds + [(j, i) for i, j in bonds]).T
    return Data(x=x, edge_index=edges, y=torch.tensor([int(more > 0)]))


graphs = read_molecules()

# %% [markdown]
# ## What is in them
#
# Two groups to ask about: the nitro groups (a nitrogen with two oxygens at the end), and the *junctions*, carbons that
# belong to two rings at once.


# %%
def neighbours(graph):
    near = [[] for _ in range(graph.num_nodes)]
    for i, j in graph.edge_index.T.tolist():
        near[i].append(j)
    return near


def symbols(graph):
    return [KINDS[i] for i in graph.x.argmax(1).tolist()]


def nitro(graph):
    """The atoms of all nitro groups."""
    near, names = neighbours(graph), symbols(graph)
    ends = [[j for j in near[i] if names[j] == "O" and len(near[j]) == 1] for i in range(len(names))]
    return [k for i in range(len(names)) if names[i] == "N" and len(ends[i]) == 2 for k in (i, *ends[i])]


def junctions(graph):
    """The atoms that belong to more than one ring of five or six."""
    near, rings = neighbours(graph), set()

    def follow(path):
        for j in near[path[-1]]:
            if j == path[0] and len(path) in (5, 6):
                rings.add(frozenset(path))
            elif j not in path and len(path) < 6:
                follow([*path, j])

    for i in range(len(near)):
        follow([i])
    return [i for i in range(len(near)) if sum(i in ring for ring in rings) > 1]


for label, name in enumerate(["not mutagenic", "mutagenic"]):
    mine = [graph for graph in graphs if int(graph.y) == label]
    counts = [sum(bool(group(graph)) for graph in mine) for group in (nitro, junctions)]
    print(f"{len(mine):3} {name}: {counts[0]} with nitro groups, {counts[1]} with junctions of rings")

# %% [markdown]
# *Every* molecule has a nitro group, of either class. Nitro compounds are what was tested. So whatever chemistry says,
# the group cannot tell the classes apart here, and a network would be foolish to rely on it alone.
#
# ## A graph network
#
# Three GIN layers and a sum over atoms. Nothing about it is special for what follows.


# %%
class Net(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.convs = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(i, width), nn.ReLU(), nn.Linear(width, width)))
            for i in (len(KINDS), width, width)
        )
        self.head = nn.Linear(width, 2)

    def forward(self, x, edge_index, batch=None):
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.head(global_add_pool(x, batch))


torch.manual_seed(0)
order = torch.randperm(len(graphs)).tolist()
known, others = (Batch.from_data_list([graphs[i] for i in some]) for some in (order[:150], order[150:]))
model = Net()
optimizer = torch.optim.Adam(model.parameters(), 5e-3, weight_decay=1e-3)
for _ in range(150):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(known.x, known.edge_index, known.batch), known.y).backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    right = model(others.x, others.edge_index, others.batch).argmax(1) == others.y
print(f"{right.float().mean():.0%} of the other {len(right)} molecules are classified correctly")

# %% [markdown]
# ## Atoms and bonds
#
# Explained is the mutagenic logit less the other one: what moves both decides nothing. Atoms are `.positions` of a
# layer, bonds the `.edges` of a graph layer, in the order of `edge_index`.

# %%
EXPLAINED = {"output": lambda o: o[:, 1] - o[:, 0]}
found = [graph for graph, ok in zip(others.to_data_list(), right, strict=True) if ok and int(graph.y)]
found = [graph for graph in found if junctions(graph)]
graph = found[0]
names = symbols(graph)
R = nrm.measure(model, (graph.x, graph.edge_index), **EXPLAINED)
print(R)
last = R["convs.2"]
ax = nrm.plot.graph(graph, nodes=R(R.input.positions), edges=R(last.edges), labels=names, value=R.value)

# %% [markdown]
# ## Walks and groups
#
# A walk goes from atom to atom, one per layer. The best ones are found without listing them all; those that visit a
# group in any layer, and those that never leave it (the subgraph relevance of GNN-LRP), are one question each.

# %%
layers = [R.input, *(R[f"convs.{i}"] for i in range(3))]
for flow in R.flows(*(layer.positions for layer in layers), k=4)[0]:
    path = " → ".join(f"{names[i]}{i}" for _, i in flow.blocks)
    print(f"{flow.relevance:6.1%}  {path}")
groups = {"nitro groups": nitro(graph), "junctions of rings": junctions(graph)}
for name, atoms in groups.items():
    visiting = R(nrm.visits(*(layer.position(atoms) for layer in layers)))
    inside = R(*(layer.position(atoms) for layer in layers))
    print(f"{name:>18}: walks that visit them {float(visiting):6.1%}, that never leave them {float(inside):6.1%}")

# %% [markdown]
# Shares above 100 % are answered by negative ones elsewhere: parts of the molecule argue against.
#
# ## Logic
#
# Do the two work together? Formulas about walks answer that, here in the words of SymbXAI (in text, too:
# `nrm.methods.symbxai(R, "nitro AND junction", layers, ...)`). [Logic](formulas.py) tells more about them.

# %%
N, J = (nrm.visits(*(layer.position(atoms) for layer in layers)) for atoms in groups.values())
for name, formula in {"both": N & J, "only nitro": N & ~J, "only junctions": J & ~N, "neither": ~N & ~J}.items():
    print(f"{name:15} {float(R(formula)):7.1%}")

# %% [markdown]
# ## Many molecules at once
#
# A batch of graphs has one measure per graph. How often is the most relevant bond one between junctions? And what do
# the groups have, on average?

# %%
batch = Batch.from_data_list(found)
B = nrm.measure(model, (batch.x, batch.edge_index, batch.batch), **EXPLAINED)
start = batch.ptr[:-1].tolist()
inside = [[first + i for i in junctions(graph)] for first, graph in zip(start, found, strict=True)]
within = [[first + i for i in nitro(graph)] for first, graph in zip(start, found, strict=True)]
pairs = [tuple(pair) for pair in batch.edge_index.T.tolist()]
number = {pair: k for k, pair in enumerate(pairs)}
bonds = B(B["convs.2"].edges)
bonds = bonds + bonds[:, [number[b, a] for a, b in pairs]]  # both directions
best = [pairs[k] for k in bonds.argmax(1).tolist()]
hits = sum(a in some and b in some for (a, b), some in zip(best, inside, strict=True))
print(f"the best bond joins two junctions in {hits} of {len(found)} molecules")
for name, atoms in (("nitro groups", within), ("junctions", inside)):
    share = B(B.input.position(atoms))
    print(f"{name:>12}: {float(share.mean()):6.1%} of the decision begins there, on average")

# %% [markdown]
# ## Is it true?
#
# Junctions have three neighbours each, and a score that knows nothing but the number of neighbours would find them as
# well. So take the groups away and look what the logits make of it.

# %%
for name, atoms in (("nitro groups", within), ("junctions", inside)):
    lost = nrm.evaluate.contribution(B, B.input.position(atoms)) / B.value
    print(f"without the {name:>12} the logits lose {float(lost.median()):5.0%} of their difference (median)")

# %% [markdown]
# The network looks at fused rings first, and it can be shown by taking them away. That agrees with those who measured
# these molecules, and found those of three or more fused rings much more mutagenic
# ([MUTAG](../docs/bibliography.md)); but it is a statement about this network, which learned what tells *these*
# molecules apart.
#
# ## On graphs of yours
#
# - `edge_index` and `batch` are known by their names, as arguments of `forward` or inside a `Data` or `Batch`. Layers
#   of your own in plain torch work as well.
# - Signed rules can fail on graph networks: `R.check()` tells, and [benchmarks](../benchmarks/README.md) has MUTAG and
#   Mutagenicity with gradients and GNNExplainer beside them.
#
# Next: [graphs in detail](../docs/graphs.md), [evaluating explanations](evaluate.py).

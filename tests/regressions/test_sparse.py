"""Sparse tensors that are made in the forward pass: what the dense ones give, or a refusal by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.capture import sparse
from regressions.piecewise import Function, check_gradient

pytestmark = pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC) tensor support", "ignore:Sparse invariant checks")

A = torch.zeros(6, 6, dtype=torch.float64)
A[[0, 0, 1, 2, 4, 5], [1, 4, 3, 0, 2, 5]] = torch.tensor([1.0, 2.0, 0.5, 1.0, -3.0, 1.0], dtype=torch.float64)

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": Tensor.to_sparse,
    "csr": Tensor.to_sparse_csr,
    "csc": Tensor.to_sparse_csc,
    "places": lambda a: torch.sparse_coo_tensor(a.nonzero().T, a[a != 0], a.shape),
}


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_constant_matrices(make: Callable[[Tensor], Tensor], samples: int) -> None:
    def products(y: Tensor, z: Tensor) -> Tensor:
        left = make(A) @ y.T + torch.sparse.mm(make(A), y.T) + torch.mm(make(A), y.T) + make(A).matmul(z.T)
        return left.T + y @ make(A) + torch.sparse.mm(make(A), make(A)).to_dense().mm(y.T).T + z

    check_gradient(products, samples)


def rows_of(y: Tensor) -> Tensor:
    """The place of every entry of a batch of rows."""
    return torch.stack([torch.arange(len(y)).repeat_interleave(6), torch.arange(6).repeat(len(y))])


def some_columns(y: Tensor) -> Tensor:
    """Columns of a sparse tensor, for which torch has no gradient."""
    at = torch.tensor([1, 4])
    return y.index_select(1, at) if y.requires_grad else y.to_sparse().index_select(1, at).to_dense()


TRACKED: dict[str, Function] = {
    "to_dense": lambda y, z: y.to_sparse().to_dense() + z,
    "coalesce": lambda y, z: y.to_sparse().coalesce().to_dense() + z,
    "matmul": lambda y, z: y.to_sparse() @ A + z,
    "mm": lambda y, z: torch.sparse.mm(y.to_sparse(), A) + z,
    "sparse by sparse": lambda y, z: torch.sparse.mm(y.to_sparse(), A.to_sparse()).to_dense() + z,
    "csr": lambda y, z: y.to_sparse_csr() @ A + z,
    "from values": lambda y, z: torch.sparse_coo_tensor(rows_of(y), y.flatten(), y.shape) @ A + z,
    "values": lambda y, z: y.to_sparse().values().view(y.shape) + z,
    "values of csr": lambda y, z: y.to_sparse_csr().values().view(y.shape) + z,
    "sum": lambda y, z: torch.sparse.sum(y.to_sparse(), 1).to_dense()[:, None] + z,
    "scaled": lambda y, z: (y.to_sparse() * 2).to_dense() + z,
    "added": lambda y, z: (y.to_sparse() + z.to_sparse()).to_dense(),
    "turned": lambda y, z: (A.to_sparse().t() @ y.to_sparse().t()).t().to_dense() + z,
    "addmm": lambda y, z: torch.sparse.addmm(z.T, A.to_sparse(), y.T, beta=0.5, alpha=2.0).T,
    "columns": lambda y, z: some_columns(y) + z[:, :2],
}


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("function", TRACKED.values(), ids=TRACKED)
def test_matrices_that_depend_on_the_input(function: Function, samples: int) -> None:
    check_gradient(function, samples)


class Refused(nn.Module):
    """A function of a sparse tensor that depends on the input."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """What the function makes of it."""
        return self.function((x * 2).to_sparse())


def test_what_cannot_be_followed_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(2, 3) + 0.1
    for function, words in (
        (lambda s: torch.sparse.softmax(s, 1).to_dense(), "softmax of a sparse tensor"),
        (lambda s: s.sin().to_dense(), "sin of a sparse tensor"),
        (lambda s: torch.sparse_coo_tensor(torch.zeros(2, 6), s.values(), s.shape)._values(), "not coalesced"),
    ):
        with pytest.raises(nrm.NrmError, match=words):
            nrm.measure(Refused(function).eval(), x, target=0)
    monkeypatch.setattr(sparse, "MOST_ENTRIES", 5)
    with pytest.raises(nrm.NrmError, match="too large"):
        nrm.measure(Refused(Tensor.to_dense).eval(), x, target=0)


def test_in_double_precision_a_constant_keeps_up() -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = (A.float().to_sparse() @ self.lin(x).T).T
            return made

    model, x = Graph().eval(), torch.randn(2, 4)
    R = nrm.measure(model, x, target=1, rules="lrp-0", bias="input", dtype=torch.float64)
    torch.testing.assert_close(R.value.float(), model(x)[:, 1])


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("conv", ["GraphConv", "GCNConv"])
def test_asap_pooling(conv: str, batched: bool) -> None:
    """Clusters of nodes, and the weights of the edges between them by sparse products."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pyg = pytest.importorskip("torch_geometric.nn")

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.pool, self.second = pyg.GCNConv(4, 5), pyg.ASAPooling(5, 0.5), getattr(pyg, conv)(5, 5)
            self.head = nn.Linear(5, 2)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
            x = self.first(x, edge_index).relu()
            x, edge_index, weight, batch, _ = self.pool(x, edge_index, torch.ones(edge_index.shape[1]), batch)
            x = self.second(x, edge_index, weight).relu()
            pooled: Tensor = pyg.global_add_pool(x, batch)
            return self.head(pooled)

    model, x = Pooled().eval(), torch.rand(8, 4)
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 0, 5, 6, 7, 4]])
    inputs = {"x": x, "edge_index": edges}
    if batched:
        inputs["batch"] = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    R = nrm.measure(model, inputs, target=1)
    torch.testing.assert_close(R.value, model(**inputs)[:, 1])
    assert "can be trusted" in str(R.check())

"""The paper's experiment on multi-layer perceptrons: second and third order, with and without biases."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from nrm.evaluate import METHODS, compare, contribution, scores
from nrm.measure import Measure, measure
from nrm.questions import Argument
from nrm.reproduce.data import Split, digits, mnist
from nrm.reproduce.drawing import correlation_figure, curves_figure
from nrm.reproduce.experiment import Experiment, Outcome, Setting, UnitPlan, ranges
from nrm.reproduce.networks import accuracy, mlp, shuffled, train
from nrm.reproduce.store import Tensors, Unit
from nrm.reproduce.tables import as_tensors, joined, rows_of

CASES = (("no-bias", "ignore"), ("bias", "input"))
THIRD = 100
"""So many samples are enough for the third order, unless the user says otherwise."""
RANKED = 1000
"""So many samples are enough for SC_k, whose sorting takes most of the time."""


def trained(setting: Setting, bias: bool) -> tuple[nn.Module, Split, float]:
    """The network (trained once, then kept), the test samples, and its accuracy on them."""
    sizes, epochs = ((64, 32, 24, 10), 30) if setting.embedded else ((784, 256, 128, 10), 5)
    learn, test = digits() if setting.embedded else mnist(setting.data)
    model = mlp(sizes, bias)

    def work() -> Tensors:
        torch.manual_seed(0)
        fresh = mlp(sizes, bias)
        train(fresh, shuffled(learn, 128, 0), epochs * (len(learn.inputs) // 128), 1e-3)
        return dict(fresh.state_dict())

    model.load_state_dict(setting.store.keep(f"weights-{'bias' if bias else 'no-bias'}", work))
    return model.eval(), test, accuracy(model, test)


def measured(model: nn.Module, test: Split, rows: range, bias: str) -> Measure:
    """Samples explained for their true class, in double precision."""
    x, y = (t[rows.start : rows.stop] for t in (test.inputs, test.classes))
    return measure(
        model, x, target=y, rules="lrp-0", bias=bias, dtype=torch.float64, zero="uniform", progress=False
    )  # fmt: skip


def _plan(setting: Setting) -> UnitPlan:
    models = {name: trained(setting, name == "bias") for name in ("no-bias", "bias")}
    test = models["bias"][1]
    count = {2: setting.samples or len(test.inputs), 3: min(setting.samples or THIRD, setting.third or THIRD)}
    count = {order: min(n, len(test.inputs)) for order, n in count.items()}
    keys: dict[tuple[int, str, str], list[str]] = {}
    units = []
    for order, size in ((2, 100), (3, 1)):
        for name, bias in CASES:
            for rows in ranges(count[order], size):
                key = f"order{order}-{name}-{bias}-{rows.start:05d}-{rows.stop:05d}"
                keys.setdefault((order, name, bias), []).append(key)
                units.append(Unit(key, partial(_judge, models[name][0], test, rows, bias, order)))

    def finish() -> Outcome:
        rows, curves = [], {}
        for (order, name, bias), parts in keys.items():
            table = joined([setting.store.read(key) for key in parts])
            rows += rows_of(table, "bias", order=order, model=name, bias=bias, rules="lrp-0")
            if (name, bias) == ("no-bias", "ignore"):
                curves[f"order {order}"] = table
        layers = [m for m in models["bias"][0].children() if isinstance(m, nn.Linear)]
        facts = {
            "network": "-".join(map(str, [*(m.in_features for m in layers), layers[-1].out_features])),
            "data": "digits of scikit-learn" if setting.embedded else "MNIST",
            **{f"accuracy, {name}": round(found[2], 4) for name, found in models.items()},
        }
        return Outcome(rows, facts, {"sc_k": curves_figure(curves), "scatter": _scatter(models["no-bias"][0], test)})

    return units, finish


def _judge(model: nn.Module, test: Split, rows: range, bias: str, order: int) -> Tensors:
    """All methods; those that propagate relevance also with biases ignored, where there are any."""
    R = measured(model, test, rows, bias)
    layers = _layers(R, order)
    own = {}
    if bias == "input":
        other = measured(model, test, rows, "ignore")
        own = {f"{name} (ignore)": scores(other, *layers, method=name) for name in ("nrm", "lrp")}
    return as_tensors(compare(R, *layers, scores=own, k=None if rows.start < RANKED else ()))


def _layers(R: Measure, order: int) -> tuple[Argument, ...]:
    return ((R.input,) if order == 3 else ()) + (R["1"].channels, R["3"].channels)


def _scatter(model: nn.Module, test: Split) -> object:
    R = measured(model, test, range(1), "ignore")
    tables: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}
    for title, layers in (("second order", _layers(R, 2)), ("third order", _layers(R, 3))):
        own = {name: scores(R, *layers, method=name) for name in METHODS if name != "random"}
        tables[title] = (contribution(R, *layers), own)
    return correlation_figure(tables)


MLP = Experiment(
    "mlp", "Joint relevance and joint contribution in a multi-layer perceptron",
    "table of correlations (MLP), figure of SC_k for MLP, scatter plots of the appendix", _plan,
)  # fmt: skip

"""The paper's recurrent toy: is the step that decides the class on top, with and without normalization?"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from nrm.evaluate import interval
from nrm.extras import extra
from nrm.measure import measure
from nrm.plot import series
from nrm.reproduce.data import Split, sequences
from nrm.reproduce.experiment import Experiment, Outcome, Setting, UnitPlan
from nrm.reproduce.networks import LinearRNN, accuracy, train
from nrm.reproduce.store import Tensors, Unit
from nrm.rules import LRP0, AlphaBeta, Rule

SEEDS = 20
EVENT = 80
RULES: dict[str, Rule] = {"alpha-beta 1.5, 0": AlphaBeta(1.5, 0.0), "lrp-0": LRP0()}
CASES = (
    ("nrm", "alpha-beta 1.5, 0", "logit"), ("nrm", "alpha-beta 1.5, 0", "difference"),
    ("unnormalized", "alpha-beta 1.5, 0", "logit"), ("nrm", "lrp-0", "logit"), ("nrm", "lrp-0", "difference"),
)  # fmt: skip


def _trained(seed: int) -> LinearRNN:
    torch.manual_seed(seed)
    model = LinearRNN()
    train(model, lambda step: sequences(64, 1000 * seed + step), 300, 3e-3)
    return model


def _both() -> Split:
    """One sequence of each class."""
    x = sequences(64, 0)
    rows = [int((x.classes == c).nonzero()[0, 0]) for c in (0, 1)]
    return Split(x.inputs[rows], x.classes[rows])


def _relevance(model: LinearRNN, method: str, rules: str, output: str) -> Tensor:
    """The relevance of every step for the true class: ``(2, steps)``."""
    split = _both()
    target: Any = split.classes if output == "logit" else None

    def difference(logits: Tensor) -> Tensor:
        return torch.stack([logits[0, 0] - logits[0, 1], logits[1, 1] - logits[1, 0]])

    R = measure(
        model, split.inputs, target=target, output=None if output == "logit" else difference, rules=RULES[rules],
        dtype=torch.float64, zero="uniform", normalize=method == "nrm", progress=False,
    )  # fmt: skip
    return R(R.input).sum(2)


def _judge(seed: int) -> Tensors:
    model = _trained(seed)
    kept = {"accuracy": torch.tensor([accuracy(model, sequences(200, 77 + seed))])}
    for method, rules, output in CASES:
        kept[f"{method}/{rules}/{output}"] = _relevance(model, method, rules, output)
    return kept


def _plan(setting: Setting) -> UnitPlan:
    seeds = setting.samples or (3 if setting.embedded else SEEDS)
    keys = [f"seed-{seed:03d}" for seed in range(seeds)]
    units = [Unit(key, partial(_judge, seed)) for seed, key in enumerate(keys)]

    def finish() -> Outcome:
        parts = [setting.store.read(key) for key in keys]
        learned = torch.cat([part["accuracy"] for part in parts]) == 1.0
        rows = []
        for method, rules, output in CASES:
            r = torch.stack([part[f"{method}/{rules}/{output}"] for part in parts])
            top = (r.abs().argmax(2) == EVENT).double().mean(1)
            rows.append({
                "order": 1, "model": "linear RNN", "bias": "none", "rules": rules, "output": output, "method": method,
                "samples": len(parts), "on_top": float(top.mean()), "on_top_ci": list(interval(top)),
                "learned": int(learned.sum()), "on_top_if_learned": float(top[learned].mean()),
                "share_of_the_event": float(r[learned][:, :, EVENT].median()),
                "largest_elsewhere": float(_elsewhere(r[learned]).median()),
            })  # fmt: skip
        facts = {
            "training seeds": len(parts), "of them with all test sequences right": int(learned.sum()),
            "deciding step": EVENT,
        }  # fmt: skip
        return Outcome(rows, facts, {"steps": _figure(parts[0])})

    return units, finish


def _elsewhere(r: Tensor) -> Tensor:
    """The largest relevance, up to its sign, of a step that decides nothing."""
    others = torch.arange(r.shape[2]) != EVENT
    return r[:, :, others].abs().amax(2)


def _figure(part: Tensors) -> Any:
    with extra("viz", "nrm reproduce rnn"):
        from matplotlib.figure import Figure
    chosen = (CASES[0], CASES[3], CASES[2])
    figure = Figure(figsize=(7, 6), layout="constrained")
    for ax, case in zip(figure.subplots(len(chosen), 1), chosen, strict=True):
        series(part["/".join(case)][0], ax=ax, title=", ".join(case))
    return figure


RNN = Experiment(
    "rnn", "A step that decides the class, in a recurrent network over 100 steps",
    "figure of the relevance of time steps, normalized and unnormalized", _plan,
)  # fmt: skip

"""SHAP values with shap's call: ``Explainer(model, background)(x)`` is a ``shap.Explanation``, for ``shap.plots``.

Values are contributions to the difference of an output from its mean over the background, in units of the output. They
are those of a contrast with every sample of the background, which is exact at every step: they sum to
``f(x) - mean f(background)`` for layer norm, GELU, softmax, attention and recurrent cells as for any other op.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from nrm.compat.options import read_options
from nrm.errors import QuestionError
from nrm.extras import extra
from nrm.measure import Average, Loop, Measure, measure


class Explainer:
    """Explains outputs of a model against a background, a batch of samples (a tensor, an array, or a data frame).

    ``feature_names`` and ``output_names`` are for plots; columns of a data frame have names already. ``options`` are
    those of :func:`nrm.measure`.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    >>> background, x = torch.randn(5, 4), torch.randn(3, 4)
    >>> values = Explainer(model, background).shap_values(x)
    >>> gap = values.sum(1) - (model(x) - model(background).mean(0)).detach().numpy()
    >>> values.shape, bool(abs(gap).max() < 1e-5)
    ((3, 4, 2), True)
    """

    def __init__(
        self, model: nn.Module, background: Any, *, feature_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.model, self.options = model, read_options(options)
        self._loop = Loop()
        if "against" in options:
            raise QuestionError("the background is the reference", got="against=", hint="Explainer(model, background)")
        self.background = self._tensor(background, "the background")
        self.feature_names, self.output_names = feature_names, output_names

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.model).__name__}, {len(self.background)} samples)"

    @property
    def expected_value(self) -> Any:
        """The mean output over the background: a number, or an array with one for each output."""
        found = self._outputs(self.background).mean(0)
        return found.cpu().numpy() if found.ndim else float(found)

    def __call__(self, x: Any, *, outputs: Sequence[int] | None = None) -> Any:
        """A ``shap.Explanation``: ``values`` ``(samples, *features, outputs)``, ``base_values``, ``data``.

        ``outputs`` picks some of them. A model with one number per sample has no axis of outputs.
        """
        with extra("shap", "nrm.compat.shap.Explainer"):
            import shap

        data = self._tensor(x, "the input")
        values = self.shap_values(data, outputs=outputs)
        base = np.asarray(self.expected_value)
        chosen = base if base.ndim == 0 or outputs is None else base[list(outputs)]
        names = self.output_names
        if names is not None and outputs is not None:
            names = [names[i] for i in outputs]
        columns = getattr(x, "columns", None)
        features = self.feature_names if columns is None else [str(name) for name in columns]
        return shap.Explanation(
            values, base_values=np.broadcast_to(chosen, (len(data), *chosen.shape)).copy(), data=data.cpu().numpy(),
            feature_names=None if features is None else list(features),
            output_names=None if names is None else list(names),
        )  # fmt: skip

    def shap_values(self, x: Any, *, outputs: Sequence[int] | None = None) -> Any:
        """The values alone, an array ``(samples, *features, outputs)``, of one output ``(samples, *features)``."""
        data = self._tensor(x, "the input")
        shape = tuple(self._outputs(data[:1]).shape[1:])
        if not shape:
            if outputs is not None:
                raise QuestionError("the model has one output", got=f"outputs={outputs!r}", expected="none")
            return next(self._values(data, [None]))
        chosen = range(shape[0]) if outputs is None else list(outputs)
        if not chosen:
            raise QuestionError("no output to explain", got=f"outputs={outputs!r}", expected=f"0 to {shape[0] - 1}")
        return np.stack(list(self._values(data, chosen)), -1)

    def _values(self, data: Tensor, targets: Sequence[int | None]) -> Iterator[Any]:
        """The values of one output after the other; input and background are captured once for all of them."""
        against = [self.background[i : i + 1] for i in range(len(self.background))]
        average = cast("Average", measure(self.model, data, target=targets[0], against=against, **self.options))
        for target in targets:
            R = Average([Measure(one.inner.explaining(target)) for one in average.contrasts])
            yield R.in_units(R.input).cpu().numpy()

    def _outputs(self, data: Tensor) -> Tensor:
        """The model's outputs, as the measure reads them; those with more than one axis are refused."""
        R = self._loop.measure(self.model, data, **self.options)
        found = R.values(R.output).detach()
        if found.ndim > 2:
            raise QuestionError(
                "a plot is about outputs with one axis", got=f"outputs of shape {tuple(found.shape[1:])}",
                expected="numbers, or a row of them per sample", hint="output=lambda out: out[:, -1]",
            )  # fmt: skip
        return found

    def _tensor(self, data: Any, what: str) -> Tensor:
        """Samples as the model takes them: its device, its precision."""
        first = next(self.model.parameters(), torch.empty(0))
        made = data if isinstance(data, Tensor) else torch.tensor(np.asarray(data))
        if made.ndim < 2 or not len(made) or made.dtype == torch.bool:
            raise QuestionError(
                f"{what} is a batch of samples", got=f"shape {tuple(made.shape)}, {made.dtype}",
                expected="(samples, features ...)", hint="x[None] for a single one",
            )  # fmt: skip
        if isinstance(data, Tensor) and not data.is_floating_point():
            raise QuestionError("integers have no values", got=str(data.dtype), expected="floats", where=what)
        return made.to(first.device, first.dtype if first.is_floating_point() else made.dtype)

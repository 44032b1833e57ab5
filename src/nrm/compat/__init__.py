"""Familiar doors: the call signatures of other libraries, answered by a measure. None but shap has to be installed.

* :mod:`nrm.compat.captum`: ``LRP(model).attribute(inputs, target=...)``, and the same for layers; ``DeepLift(model)``
  and ``DeepLiftShap(model)``.
* :mod:`nrm.compat.shap`: ``Explainer(model, background)(x)``, a ``shap.Explanation`` (this one needs shap).
* :mod:`nrm.compat.crp`: ``CondAttribution(model)(data, conditions, record_layer=[...])`` with condition dicts.
* :func:`nrm.compat.geometric`: an algorithm for PyTorch Geometric's ``Explainer``.
* :func:`nrm.compat.quantus`: an ``explain_func`` for Quantus' metrics.

Here relevance has the scale that users of these libraries expect: a share times the explained output.
"""

from nrm.compat import captum, crp, shap
from nrm.compat.graphs import geometric
from nrm.compat.metrics import quantus

__all__ = ["captum", "crp", "geometric", "quantus", "shap"]

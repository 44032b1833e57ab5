"""Every model type of the installed transformers, with a tiny random configuration and inputs made for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from nrm.extras import extra
from nrm.testing.census.compiled import load_torchvision
from nrm.testing.census.dummies import Given, candidates, others_like, with_places
from nrm.testing.census.judge import enliven
from nrm.testing.census.settling import with_sections
from nrm.testing.census.shrinking import shrunk
from nrm.testing.census.subject import Cases, CensusCase, NotMadeError, Subject

OF = "transformers"
HEADS = (
    "IMAGE_TEXT_TO_TEXT", "SPEECH_SEQ_2_SEQ", "IMAGE_CLASSIFICATION", "OBJECT_DETECTION", "UNIVERSAL_SEGMENTATION",
    "SEMANTIC_SEGMENTATION", "DEPTH_ESTIMATION", "VIDEO_CLASSIFICATION", "CTC", "AUDIO_CLASSIFICATION",
    "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM", "MULTIMODAL_LM", "SEQUENCE_CLASSIFICATION",
    "ZERO_SHOT_OBJECT_DETECTION", "TIME_SERIES_PREDICTION", "TIME_SERIES_CLASSIFICATION", "QUESTION_ANSWERING",
    "ZERO_SHOT_IMAGE_CLASSIFICATION", "TOKEN_CLASSIFICATION",
)  # fmt: skip
"""Which head a model gets, the first that it has; without any it is the model as such."""
MOST_PARAMETERS = 60_000_000


def cases() -> Cases:
    """One case for every model type that has a model."""
    with extra("text", "nrm.testing.census"):
        from transformers import CONFIG_MAPPING
    with suppress(ImportError):
        load_torchvision()  # which transformers imports where it is installed
    importlib.import_module("transformers.modeling_utils")  # once for all, what every case would import by itself
    return [CensusCase(OF, kind, _Maker(kind)) for kind in CONFIG_MAPPING if _classes(kind)]


def _classes(kind: str) -> list[str]:
    """The names of the model classes of a type, the one to be asked first."""
    from transformers.models.auto import modeling_auto

    found = [vars(modeling_auto).get(f"MODEL_FOR_{head}_MAPPING_NAMES", {}).get(kind) for head in HEADS]
    found.append(modeling_auto.MODEL_MAPPING_NAMES.get(kind))
    flat = [name for one in found if one for name in ([one] if isinstance(one, str) else one)]
    return list(dict.fromkeys(flat))


class _Maker:
    """Makes the model of one type."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self) -> Subject:
        """The first head, and the smallest form, that can be made and runs."""
        said = ["no model class"]
        for name in _classes(self.kind)[:3]:
            for form in FORMS:
                try:
                    model = _made(self.kind, name, form)
                except Exception as error:
                    said.append(f"{name}: {type(error).__name__}: {error}"[:200])
                    continue
                generator = torch.Generator().manual_seed(1)
                given, complaint = _fitting(model, generator)
                if given is not None:
                    others = others_like(model, given, generator)
                    rows = None if "grid_thw" in given else 0  # patches in rows are one image
                    return Subject(model, given, others, _output(model, given), rows)
                said.append(f"{name}: {complaint}")
        raise NotMadeError(" | ".join(said[1:3]))


FORMS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "small": shrunk,
    "small, with sections": lambda config: with_sections(shrunk(config)),
    "of few layers": lambda config: shrunk(config, narrow=False),
}
"""How configurations are made small, the smallest first."""


def _made(kind: str, name: str, form: str) -> nn.Module:
    import transformers

    config_class = transformers.CONFIG_MAPPING[kind]
    config = config_class.from_dict(FORMS[form](config_class().to_dict()))
    known = getattr(transformers, name, None)
    if known is None:
        known = getattr(importlib.import_module(f"transformers.models.{kind}"), name)
    with torch.device("meta"):
        size = sum(p.numel() for p in known(config).parameters())
    if size > MOST_PARAMETERS:
        raise NotMadeError(f"{size} parameters")
    torch.manual_seed(0)
    return enliven(known(config).float())


def _fitting(model: nn.Module, generator: torch.Generator) -> tuple[Given | None, str]:
    """The first inputs that a model takes, or the first complaint."""
    said: list[str] = []
    for given in candidates(model, generator):
        tried: Given | None = given
        for _ in range(2):
            if tried is None:
                break
            try:
                with torch.no_grad():
                    _first(model(**tried))
                return tried, ""
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}"[:160])
                tried = with_places(model, tried, str(error))
    return None, said[0] if said else "no inputs"


def _first(result: Any) -> Tensor:
    """The first float tensor of a result, the logits if it has any."""
    for name in ("logits", "logits_per_image", "prediction_logits", "last_hidden_state"):
        if isinstance(getattr(result, name, None), Tensor):
            known: Tensor = getattr(result, name)
            return known
    found: Tensor | None = next(_floats(result), None)
    if found is None:
        raise NotMadeError(f"no float tensor in {type(result).__name__}")
    return found


def _floats(value: Any) -> Any:
    if isinstance(value, Tensor):
        yield from [value] if value.is_floating_point() and value.numel() > 1 else []
    elif isinstance(value, dict):
        for one in value.values():
            yield from _floats(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _floats(one)


def _output(model: nn.Module, given: Given) -> Any:
    """None where the library knows by itself what is explained; else the first result, a number for every sample."""
    with torch.no_grad():
        result = model(**given)
    logits = getattr(result, "logits", None)
    if isinstance(logits, Tensor) and (logits.ndim == 2 or (logits.ndim == 3 and "input_ids" in given)):
        return None
    return _row if "grid_thw" in given else _flat


def _row(result: Any) -> Tensor:
    return _first(result).flatten()


def _flat(result: Any) -> Tensor:
    return _first(result).flatten(1)

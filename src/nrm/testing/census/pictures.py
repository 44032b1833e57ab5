"""Models of images: one small member of every family of timm and of torchvision, detection and segmentation too."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nrm.extras import extra
from nrm.testing.census.compiled import load_torchvision
from nrm.testing.census.judge import enliven
from nrm.testing.census.subject import Cases, CensusCase, NotMadeError, Subject

TIMM, TORCHVISION = "timm", "torchvision"
SMALL = ("test_", "atto", "femto", "pico", "nano", "micro", "mobilenet", "_p2", "xxs", "xx_small", "xsmall", "_xs",
         "_t0", "mini", "tiny", "_0", "_s0", "_m0", "_b0", "_050", "18", "_s", "small", "_r26", "26", "50",
         "base")  # fmt: skip
"""Parts of names of small models, the smallest first."""
SIDES = (64, 96, 128, 224, 256)
"""Sides of images that are tried, in pixels."""
PLAINLY = {"aux_logits": False, "init_weights": False}
FEW = {"rpn_pre_nms_top_n_test": 20, "rpn_post_nms_top_n_test": 10, "box_detections_per_img": 5}
OPTIONS: dict[str, dict[str, Any]] = {
    "googlenet": PLAINLY, "inception": PLAINLY, "rcnn": FEW,
    "retinanet": {"topk_candidates": 20}, "fcos": {"topk_candidates": 20}, "ssd": {"topk_candidates": 20},
    "vit_": {"image_size": 64},
}  # fmt: skip
"""What is asked for beside the defaults, by a part of a model's name: fewer boxes, smaller images."""


def _small_maxvit() -> nn.Module:
    from torchvision import models

    made: nn.Module = models.MaxVit((64, 64), 16, 2, [16, 32], [1, 1], 8, 0.0)
    return made


def _small_mvit() -> nn.Module:
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    blocks = [
        MSBlockConfig(1, 16, 32, kernel_q=[3, 3, 3], kernel_kv=[3, 3, 3], stride_q=[1, 1, 1], stride_kv=[1, 4, 4]),
        MSBlockConfig(2, 32, 32, kernel_q=[3, 3, 3], kernel_kv=[3, 3, 3], stride_q=[1, 2, 2], stride_kv=[1, 2, 2]),
    ]
    made: nn.Module = MViT((64, 64), 4, blocks, True, False, True, True, num_classes=5)
    return made


SMALLER: dict[str, Callable[[], nn.Module]] = {"maxvit": _small_maxvit, "mvit": _small_mvit}
"""Models whose builders fix the size of images, made by their classes."""


def timm_cases() -> Cases:
    """One case for every module of timm."""
    with extra("timm", "nrm.testing.census"):
        load_torchvision()  # which timm imports
        import timm
    return [CensusCase(TIMM, kind, _of_timm(_smallest(timm.list_models(module=kind)))) for kind in timm.list_modules()
            if timm.list_models(module=kind)]  # fmt: skip


def torchvision_cases() -> Cases:
    """One case for every module of torchvision's models."""
    with extra("vision", "nrm.testing.census"):
        load_torchvision()
        from torchvision import models
    families: dict[str, list[str]] = {}
    for name in models.list_models():
        if not name.startswith("quantized"):
            families.setdefault(
                models.get_model_builder(name).__module__.removeprefix("torchvision.models."), []
            ).append(name)
    return [CensusCase(TORCHVISION, kind, _of_torchvision(_smallest(names))) for kind, names in families.items()]


def _smallest(names: list[str]) -> str:
    """The name that says that it is the smallest of several models."""
    return min(
        names, key=lambda name: (next((i for i, part in enumerate(SMALL) if part in name), len(SMALL)), len(name), name)
    )


def _of_timm(name: str) -> Callable[[], Subject]:
    def build(side: int) -> Iterator[nn.Module]:
        import timm

        yield timm.create_model(name, num_classes=5, img_size=side)

    def plain(side: int) -> Iterator[nn.Module]:
        import timm

        yield timm.create_model(name, num_classes=5)

    return lambda: _fitting(name, (build, plain))


def _of_torchvision(name: str) -> Callable[[], Subject]:
    def build(side: int) -> Iterator[nn.Module]:
        from torchvision import models

        small = next((make for part, make in SMALLER.items() if part in name), None)
        if small is not None:
            yield small()
            return
        builder = models.get_model_builder(name)
        takes = inspect.signature(builder).parameters
        options: dict[str, Any] = {"weights": None}
        options |= {"weights_backbone": None} if "weights_backbone" in takes else {}
        yield builder(**options, **next((more for part, more in OPTIONS.items() if part in name), {}))

    if _finds(name):
        return lambda: _detecting(next(build(0)))
    return lambda: _fitting(name, (build,))


def _finds(name: str) -> bool:
    """Whether a model finds things in images: it takes a list of images, and gives boxes with scores."""
    return any(part in name for part in ("rcnn", "retinanet", "ssd", "fcos"))


def _detecting(model: nn.Module) -> Subject:
    """The score of the best box."""
    transform: Any = model.transform
    transform.min_size, transform.max_size = (96,), 96
    for part in (model, *model.children()):
        if hasattr(part, "score_thresh"):
            setattr(part, "score_thresh", 0.0)  # noqa: B010
    model = enliven(model)
    generator = torch.Generator().manual_seed(1)
    one, other = ([torch.rand(3, 96, 96, generator=generator)] for _ in range(2))
    return Subject(model, (one,), (other,), best_score, batch_dim=None)


def best_score(found: list[dict[str, Tensor]]) -> Tensor:
    """The score of the first box of an image."""
    return found[0]["scores"][:1]


Builder = Callable[[int], Iterator[nn.Module]]


def _fitting(name: str, builders: tuple[Builder, ...]) -> Subject:
    """A model with the smallest image that it takes."""
    said: list[str] = []
    for side in SIDES:
        for build in builders:
            try:
                torch.manual_seed(0)
                model = enliven(next(build(side)))
                generator = torch.Generator().manual_seed(1)
                for shape in ((1, 3, side, side), (1, 3, 4, side, side), (1, 3, 16, side, side)):
                    one, other = (torch.rand(shape, generator=generator) for _ in range(2))
                    inputs, others = ((one, other), (other, one)) if name.startswith("raft") else (one, other)
                    if _runs(model, inputs, said):
                        return Subject(model, inputs, others, classes)
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}"[:160])
    raise NotMadeError(f"{name}: {said[0]}")


def _runs(model: nn.Module, inputs: Any, said: list[str]) -> bool:
    try:
        with torch.no_grad():
            found = classes(model(*inputs) if isinstance(inputs, tuple) else model(inputs))
        return bool(torch.isfinite(found).all())
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}"[:160])
        return False


def classes(result: Any) -> Tensor:
    """The classes of an image, or of every pixel of it, in a row."""
    if isinstance(result, dict):
        result = result["out"] if "out" in result else next(iter(result.values()))
    while isinstance(result, list | tuple):
        result = result[-1]
    found: Tensor = result
    return found.flatten(1)

"""Features of boxes in images, as detectors read them: torchvision's op, from samples between pixels and their mean."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nrm.capture.vocabulary.composed import composes


@composes("torchvision::roi_align")
def _roi_align(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int,
    aligned: bool,
) -> Tensor:  # fmt: skip
    """Every bin of a box is the mean of a grid of samples in it. Boxes of one image with grids of one size go together.

    Boxes are held constant, as torchvision's own gradient holds them.
    """
    held = rois.detach() * 1
    low = held[:, 1:3] * spatial_scale - 0.5 * aligned
    size = held[:, 3:5] * spatial_scale - 0.5 * aligned - low
    size = size if aligned else size.clamp(min=1)
    bins = torch.tensor([pooled_width, pooled_height]).to(size)
    counts = (size / bins).ceil().clamp(min=1) if sampling_ratio <= 0 else torch.full_like(size, sampling_ratio)
    if not len(held):
        return input.new_zeros(0, input.shape[1], pooled_height, pooled_width)
    keys, group = torch.cat([held[:, :1], counts], 1).long().unique(dim=0, return_inverse=True)  # type: ignore[no-untyped-call]
    parts = []
    for k, (image, across, down) in enumerate(keys.tolist()):
        mine = group == k
        x = _points(low[mine, 0], size[mine, 0] / pooled_width, pooled_width, across)
        y = _points(low[mine, 1], size[mine, 1] / pooled_height, pooled_height, down)
        parts.append(_means(input[image], x, y, across, down))
    order = torch.cat([(group == k).nonzero().flatten() for k in range(len(keys))])
    return torch.cat(parts)[order.argsort()]


def _points(low: Tensor, bin: Tensor, bins: int, samples: int) -> Tensor:
    """Where boxes are sampled along one axis, in pixels: the middles of equal parts of their bins."""
    steps = (torch.arange(bins * samples).to(low) + 0.5) / samples
    return low[:, None] + steps * bin[:, None]


def _means(image: Tensor, x: Tensor, y: Tensor, across: int, down: int) -> Tensor:
    """Means over the samples of every bin; samples more than a pixel outside the image are 0."""
    height, width = image.shape[-2:]
    inside = ((x >= -1) & (x <= width))[:, None, :] & ((y >= -1) & (y <= height))[:, :, None]
    grid = torch.stack(torch.broadcast_tensors(_scaled(x, width)[:, None, :], _scaled(y, height)[:, :, None]), -1)  # type: ignore[no-untyped-call]
    boxes, rows, columns = inside.shape
    found = F.grid_sample(
        image[None], grid.reshape(1, boxes * rows, columns, 2), padding_mode="border", align_corners=True
    )
    found = found.view(len(image), boxes, rows, columns).transpose(0, 1) * inside[:, None].to(found.dtype)
    return F.avg_pool2d(found, (down, across))


def _scaled(place: Tensor, size: int) -> Tensor:
    """A place in pixels as grid_sample has it, -1 at the first pixel and 1 at the last; one pixel is everywhere."""
    return place.clamp(0, size - 1) * (2 / max(size - 1, 1)) - 1

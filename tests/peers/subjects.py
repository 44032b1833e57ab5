"""What the peers and we explain: small plain CNNs, the networks that hooks misread, and the real VGG16.

Everything is float64 and every stabilizer is far below rounding, so agreement means agreement to rounding.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

TINY = 1e-30  # a stabilizer that stabilizes nothing: peers want one, and a zero would give them NaN

WNIDS = [
    "n01440764",
    "n02102040",
    "n02979186",
    "n03000684",
    "n03028079",
    "n03394916",
    "n03417042",
    "n03425413",
    "n03445777",
    "n03888257",
]


class PlainCNN(nn.Module):
    """conv, relu, pool, conv, relu, flatten, linear, relu, linear (captum refuses a Flatten module)."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=bias),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 6, 3, stride=2, bias=bias),
            nn.ReLU(),
        )
        self.classifier = nn.Sequential(nn.Linear(6 * 3 * 3, 12, bias=bias), nn.ReLU(), nn.Linear(12, 4, bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


def plain_cnn(seed: int, *, bias: bool = True) -> PlainCNN:
    torch.manual_seed(seed)
    model = PlainCNN(bias=bias).double().eval()
    for module in model.modules():
        if bias and isinstance(module, nn.Conv2d | nn.Linear):
            # Small enough that no unit lives by its bias alone: such a unit has no inputs to give its relevance to,
            # which is where peers leak and we have a sink.
            nn.init.uniform_(module.bias, -0.02, 0.02)
    return model


def normed_cnn(seed: int) -> nn.Sequential:
    """conv, batch norm (scales of both signs), relu, average pool, all again, linear."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(8, 6, 3, stride=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 4),
    ).double()
    for module in model:
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.uniform_(module.bias, -0.02, 0.02)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.running_mean, -0.02, 0.02)
        elif isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.uniform_(module.bias, -0.02, 0.02)
    return model.eval()


def top_class(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).argmax(1)


def images(seed: int, *, batch: int = 3, signed: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(batch, 3, 14, 14, dtype=torch.float64, generator=generator)
    return x if signed else x.abs()


class CalledTwice(nn.Module):
    """One module, two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(6, 6, bias=False)
        self.relu = nn.ReLU()
        self.head = nn.Linear(6, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.mix(self.relu(self.mix(x)))))


class FunctionalResidual(nn.Module):
    """A residual sum written as ``+``, which no hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6, bias=False)
        self.branch = nn.Linear(6, 6, bias=False)
        self.relu = nn.ReLU()
        self.head = nn.Linear(6, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.stem(x))
        return self.head(self.relu(h + self.branch(h)))


class ReusedCell(nn.Module):
    """A recurrent net: one linear module on (input, state), called again at every time step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4 + 6, 6, bias=False)
        self.relu = nn.ReLU()
        self.head = nn.Linear(6, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 6)
        for t in range(x.shape[1]):
            h = self.relu(self.cell(torch.cat([x[:, t], h], 1)))
        return self.head(h)


class TiedWeights(nn.Module):
    """An autoencoder whose decoder is the transposed encoder, and a head on top."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 5, bias=False)
        self.relu = nn.ReLU()
        self.head = nn.Linear(6, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        code = self.relu(self.encoder(x))
        return self.head(self.relu(nn.functional.linear(code, self.encoder.weight.t())))


class SharedParameter(nn.Module):
    """Two modules that hold the same Parameter object."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, bias=False)
        self.second = nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.relu = nn.ReLU()
        self.head = nn.Linear(6, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.second(self.relu(self.first(x)))))


MISREAD = (CalledTwice, FunctionalResidual, ReusedCell, TiedWeights)


def misread(kind: type[nn.Module], seed: int) -> tuple[nn.Module, Tensor]:
    """A network of that kind, and inputs for which it is alive (its output and its gradient are not zero)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (16, 5, 4) if kind is ReusedCell else (16, 6)
    torch.manual_seed(seed)
    model = kind().double().eval()
    x = torch.randn(shape, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        alive = model(x)[:, 0].abs() > 1e-3
    return model, x[alive]


def gradient_truth(model: nn.Module, x: Tensor, target: int) -> Tensor:
    """LRP-0 of a ReLU network without biases: gradient times input over output, by autograd alone."""
    x = x.detach().clone().requires_grad_()
    value = model(x)[:, target]
    (gradient,) = torch.autograd.grad(value.sum(), x)
    return (gradient * x / column(value, x)).detach()


def onehot(target: int | Tensor, like: Tensor) -> Tensor:
    start = torch.zeros_like(like)
    start[torch.arange(len(like)), target] = 1.0
    return start


def column(per_sample: Tensor, like: Tensor) -> Tensor:
    """One number per sample, shaped to divide a tensor with more axes."""
    return per_sample.view(-1, *[1] * (like.ndim - 1))


def relative_error(got: Tensor, expected: Tensor) -> float:
    """The L1 distance per sample over the total variation of what is expected; the worst sample.

    Where nothing is expected (a channel that is dead for a sample), nothing may be got.
    """
    assert got.shape == expected.shape, f"{tuple(got.shape)} is not {tuple(expected.shape)}"
    difference = (got - expected).abs().flatten(1).sum(1)
    scale = expected.abs().flatten(1).sum(1)
    return float(torch.where(difference == 0, 0.0, difference / scale).max())


def sums(relevance: Tensor) -> Tensor:
    return relevance.flatten(1).sum(1)


class VGG16(nn.Module):
    """VGG16 in torchvision's module layout, with the narrow ten-class head of the shared weights."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
            if width:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            else:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 512),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(512, 512),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(512, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def vgg16_imagenette(weights: Path) -> VGG16:
    from safetensors.torch import load_file

    with torch.device("meta"):
        model = VGG16()
    model.load_state_dict({name: tensor.double() for name, tensor in load_file(weights).items()}, assign=True)
    return model.eval()


def photo(folder: Path, wnid: str) -> Tensor:
    """The first validation photo of a class, normalized as ImageNet photos are."""
    import numpy
    from PIL import Image

    path = sorted((folder / wnid).iterdir())[0]
    with Image.open(path) as image:
        pixels = torch.from_numpy(numpy.asarray(image.convert("RGB"), dtype=numpy.float64) / 255)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return ((pixels - mean) / std).permute(2, 0, 1).unsqueeze(0).contiguous()

"""The main job on embedded data: train a small network on scikit-learn's digits, then ask its measure.

Prints the prediction, the certificate and the strongest interactions between channels of two layers, and writes a
picture: the heat map of the decision, and of its strongest interaction alone. Needs no download.
"""

from __future__ import annotations

import argparse
import pathlib
import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from tqdm.auto import tqdm

import nrm


class DigitNet(nn.Module):
    """Two convolutions with a residual block between them, and a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.conv3 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.relu1, self.relu2, self.relu3 = nn.ReLU(), nn.ReLU(), nn.ReLU()
        self.fc = nn.Linear(32 * 2 * 2, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.conv1(x))
        x = self.pool(self.relu2(self.conv2(x) + x))
        x = self.pool(self.relu3(self.conv3(x)))
        return self.fc(x.flatten(1))


def trained(images: Tensor, classes: Tensor, epochs: int) -> DigitNet:
    """A few seconds of training."""
    model = DigitNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in tqdm(range(epochs), desc="training"):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), classes[batch]).backward()
            optimizer.step()
    return model.eval()


def main() -> None:
    """Train, measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sample", type=int, default=12, help="which test image is explained")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/digits.png"))
    options = parser.parse_args()

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    classes = torch.tensor(digits.target)
    model = trained(images[:1500], classes[:1500], options.epochs)
    test, truth = images[1500:], classes[1500:]
    with torch.no_grad():
        accuracy = float((model(test).argmax(1) == truth).float().mean())
    print(f"a network trained on {1500} digits; accuracy on {len(test)} others: {accuracy:.1%}\n")

    image = test[options.sample : options.sample + 1]
    begin = time.perf_counter()
    R = nrm.measure(
        model, image, rules="epsilon-plus", bias="input", labels={"output": [f"digit {i}" for i in range(10)]}
    )
    low, high = R["relu1"], R["relu3"]
    pairs = R(low.channels, high.channels)[0]
    seconds = time.perf_counter() - begin
    print(R, end="\n\n")
    print(R.check(), end="\n\n")
    print(f"the strongest of all {pairs.numel()} interactions of {low} and {high} (found in {seconds * 1e3:.0f} ms):")
    best = pairs.flatten().topk(5)
    for share, flat in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        i, j = divmod(flat, pairs.shape[1])
        given = float(R(low.channel(i), given=high.channel(j)))
        print(f"  {share:6.1%}  of the decision flowed through {low}.channel({i}) and {high}.channel({j});"
              f" {given:.0%} of what {high}.channel({j}) carries")  # fmt: skip
    skip = R.edge("relu1", "/add")
    print(f"\nthe residual branch carries {float(R(R['conv2'].all)):.1%}, its skip connection {float(R(skip.all)):.1%}")
    i, j = divmod(int(best.indices[0]), pairs.shape[1])
    draw(R, image, low.channel(i), high.channel(j), options.out)
    print(f"picture: {options.out}")


def draw(R: nrm.Measure, image: Tensor, low: nrm.Set, high: nrm.Set, path: pathlib.Path) -> None:
    """The image, the whole heat map, and the heat map of one interaction."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    axes[0].imshow(image[0, 0].numpy(), cmap="gray_r")
    axes[0].set(title=f"x\npredicted {int(R.prediction)}", xticks=[], yticks=[])
    nrm.plot.heatmap(R(R.input)[0], ax=axes[1], title="R(x)\nthe whole decision")
    nrm.plot.heatmap(R(R.input, low, high)[0], ax=axes[2], title=f"R(x, a, b)\na = {low}, b = {high}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()

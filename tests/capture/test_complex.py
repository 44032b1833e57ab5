"""Complex numbers are pairs of real ones: every function of them against torch's gradient, or in its own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")
F64 = torch.float64
C = torch.randn(6, dtype=torch.complex128, generator=torch.Generator().manual_seed(5))
M = torch.randn(6, 6, dtype=torch.complex128, generator=torch.Generator().manual_seed(6))


class Model(nn.Module):
    """A function of complex numbers between dense layers."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.function, self.last = nn.Linear(5, 24, bias=False), function, None
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).reshape(-1, 4, 6)
        found: Tensor = self.function(h)
        return found.reshape(len(x), -1)


def z(h: Tensor) -> Tensor:
    return torch.complex(h, h.flip(-1) * 0.5)


def spectrogram(h: Tensor, window: Tensor) -> Tensor:
    return torch.stft(h.flatten(1), 8, 4, window=window, return_complex=True)


ONES = torch.ones(8, dtype=F64)


def holds(R: nrm.Measure) -> bool:
    """Whether every cut has mass 1, up to rounding beside what cancels in it."""
    check = R.check(strict=False)
    assert check.cut_error is not None
    return check.cut_error < 1e-12 * max(1.0, *(max(row) for row in check.variation.values()))


LINEAR: dict[str, Callable[[Tensor], Tensor]] = {
    "fftn of some": lambda h: torch.fft.fftn(h, s=(6,)).real,
    "fft": lambda h: torch.fft.fft(h).real,
    "rfft and back": lambda h: torch.fft.irfft(torch.fft.rfft(h) * C[:4], n=6),
    "fft2": lambda h: torch.fft.fft2(h).imag, "fftn along axes": lambda h: torch.fft.fftn(h, dim=(-1, -2)).real,
    "there and back": lambda h: torch.fft.ifft(torch.fft.fft(h, dim=1), dim=1).real,
    "hfft": lambda h: torch.fft.hfft(z(h)),
    "rfft2, filtered": lambda h: torch.fft.irfft2(torch.fft.rfft2(h, norm="ortho") * C[:4], s=(4, 6), norm="ortho"),
    "stft": lambda h: torch.view_as_real(spectrogram(h, torch.hann_window(8).double())[:, 1:, 1:]),  # frame 0 is even
    "istft": lambda h: torch.istft(spectrogram(h, ONES), 8, 4, window=ONES),
    "view_as_complex": lambda h: torch.view_as_real(torch.view_as_complex(h.reshape(-1, 4, 3, 2)) * C[:3]),
    "a number": lambda h: (z(h) * (2 - 1j) / 3).imag, "conjugate": lambda h: (z(h).conj() * C).imag,
    "matmul": lambda h: (z(h) @ M).real, "einsum": lambda h: torch.einsum("btc,cd->btd", z(h), M).imag,
    "real weights": lambda h: (h * C).real + (C * h).imag, "real divisor": lambda h: (z(h) / 2).imag,
    "moved": lambda h: torch.cat([z(h)[:, 1:], z(h).transpose(1, 2).reshape(-1, 4, 6)[:, :1].flip(1)], 1).imag,
    "unbound": lambda h: sum(part.imag for part in z(h).unbind(1)) + 0 * h[:, 0],
    "summed": lambda h: z(h).sum(1).real + z(h).mean(1).imag, "with a real one": lambda h: (z(h) + h - 2 * h).imag,
    "padded and shifted": lambda h: torch.fft.fftshift(torch.nn.functional.pad(z(h), (1, 1)), dim=-1).imag,
    "cast": lambda h: (h.to(torch.complex128) * C).imag, "divided by a constant": lambda h: (z(h) / C).real,
    "hermitian": lambda h: (z(h).mH @ torch.ones(4, 2, dtype=torch.complex128)).imag,
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_linear_functions_are_gradients(name: str) -> None:
    model, x = Model(LINEAR[name]), torch.randn(2, 5, dtype=F64, generator=torch.Generator().manual_seed(1))
    R = nrm.measure(model, x, rules="lrp-0", target=1)
    leaf = x.clone().requires_grad_()
    output = model(leaf)[:, 1]
    expected = leaf * torch.autograd.grad(output.sum(), leaf)[0] / output[:, None]
    torch.testing.assert_close(R.value, output.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(R(R.input), expected.detach(), rtol=1e-8, atol=1e-10)
    assert holds(R)


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "power spectrum": lambda h: torch.fft.rfft(h).abs().square(), "length": lambda h: z(h).abs(),
    "a spectrum in decibels": lambda h: (spectrogram(h, ONES).abs() + 1e-3).log1p(),
    "a product of both": lambda h: (z(h) * torch.fft.fft(h)).real,
    "a quotient": lambda h: (z(h) / (z(h).flip(1) + 3)).imag,
    "exponential": lambda h: torch.exp(z(h) * 0.3).real, "polar": lambda h: torch.polar(h.abs(), h * 0.5).imag,
    "squared": lambda h: (z(h) ** 2).imag, "products of matrices": lambda h: (z(h) @ z(h).transpose(1, 2)).real,
    "long convolution": lambda h: torch.fft.irfft(torch.fft.rfft(h, n=12) * torch.fft.rfft(h.tanh(), n=12))[..., :6],
}  # fmt: skip


@pytest.mark.parametrize("name", [*LINEAR, *OTHERS])
def test_contrasts_are_exact(name: str) -> None:
    generator = torch.Generator().manual_seed(2)
    x, y = (torch.randn(2, 5, dtype=F64, generator=generator) for _ in range(2))
    model = Model({**LINEAR, **OTHERS}[name])
    R = nrm.measure(model, x, target=1, against=y)
    torch.testing.assert_close(R.value, (model(x) - model(y))[:, 1].detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(R(R.input).sum(-1), torch.ones(2, dtype=F64), rtol=0.0, atol=1e-8)
    assert holds(R)


@pytest.mark.parametrize("name", OTHERS)
def test_plain_measures_have_mass_one(name: str) -> None:
    x = torch.randn(2, 5, dtype=F64, generator=torch.Generator().manual_seed(3))
    model = Model(OTHERS[name])
    R = nrm.measure(model, x, target=1, rules="lrp-0", bias="input")
    torch.testing.assert_close(R.value, model(x)[:, 1].detach(), rtol=1e-9, atol=1e-12)
    check = R.check(strict=False)
    assert check.mass == pytest.approx((1.0, 1.0), abs=1e-9)
    assert holds(R)


def test_samples_stay_apart() -> None:
    """A transform of the batch keeps its axis: one sample has what it has alone."""
    model, x = Model(LINEAR["rfft and back"]), torch.randn(3, 5, dtype=F64, generator=torch.Generator().manual_seed(4))
    both, alone = nrm.measure(model, x, target=2), nrm.measure(model, x[1:2], target=2)
    torch.testing.assert_close(both(both.input)[1:2], alone(alone.input))


def test_complex_weights_are_constants() -> None:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(C[:4].clone())

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=6)

    x = torch.randn(2, 6, dtype=F64, generator=torch.Generator().manual_seed(7))
    R = nrm.measure(Filter(), x, target=0)
    torch.testing.assert_close(R(R.input).sum(-1), torch.ones(2, dtype=F64))


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "sign": (lambda h: torch.sgn(z(h)).real, "sgn of complex numbers cannot be followed"),
    "in place": (lambda h: z(h).mul_(2).real, "mul of complex numbers in place"),
    "padding": (lambda h: torch.nn.functional.pad(z(h), (1, 1), value=1.0).real, "pad of complex numbers"),
    "window": (lambda h: spectrogram(h, h.flatten()[:8]).real, "a window that depends"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_followed_is_refused_by_name(name: str) -> None:
    function, words = REFUSED[name]
    with pytest.raises(nrm.CaptureError, match=words):
        nrm.measure(Model(function), torch.randn(1, 5, dtype=F64))

"""What a certificate says in words: what argues for the explained value and what against it, and what would help.

Only what was measured is said. A remedy is named only where it is not in use already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from nrm.capture import Deviation
from nrm.numbers import percent

CONSTANT = 0.99
"""Above this share in biases and offsets, of every sample, the verdict says that little of the mass is elsewhere."""
BEYOND = 0.01
"""Shares so far below 0 or above 1 are explained: what is for the explained value, and what is against it."""
NEAR_ZERO = 100.0
"""An output counts as close to 0 if the absolute values of what it is the sum of are so many times as large."""
OUTPUT, DIFFERENCE = "The explained output", "The explained difference"
Said = TypeVar("Said", bound=int | None)
"""The sample that something is said of; None for all of them."""
SHARED_ZERO = (
    "The explained output is 0: what is given are the shares of the rule at its last step; in units of the output all"
    " of them are 0."
)
OTHER_OUTPUT = "explain another output (target=...), or a difference (output=lambda o: o[:, 1] - o[:, 0])"


def _percent(share: float) -> str:
    """Two decimals up to 100 %, whole numbers beyond: there the size is what matters."""
    return percent(share, 2 if abs(share) <= 1 else 0)


def is_beyond(constant: float) -> bool:
    """Whether a share of biases and offsets, or that of everything else, is below 0 or above 100 %."""
    return not -BEYOND <= constant <= 1 + BEYOND


def balance(constant: float) -> str:
    """The share of biases and offsets beside that of everything else, and on which side each of them is.

    >>> balance(-4.0)
    'biases and offsets have -400 %, against the explained value, and everything else has 500 %, for it'
    """
    sides = ("for", "against") if constant > 0 else ("against", "for")
    return (
        f"biases and offsets have {_percent(constant)}, {sides[0]} the explained value, and everything else has "
        f"{_percent(1 - constant)}, {sides[1]} it"
    )


def constants(shares: Sequence[float]) -> Iterator[str]:
    """What is worth saying about the mass in biases and offsets, one share per sample."""
    beyond = [i for i, share in enumerate(shares) if is_beyond(share) and abs(share) > CONSTANT]
    if beyond:
        worst = max(beyond, key=lambda i: abs(shares[i]))
        where = f"of sample {worst} " if len(shares) > 1 else ""
        yield (
            f"But shares beyond 100 % cancel: {where}{balance(shares[worst])}; together they are 100 %."
            " R.in_units(...) gives them in units of the output."
        )
        return
    least = min(shares, default=0.0)
    if least > CONSTANT:
        yield (
            f"But {_percent(least)} of the mass is in biases and offsets, and {_percent(1 - least)} in everything else."
            " What the network says without its input was not tried; nrm.evaluate.remove(R, R.input.all) tries it."
        )


def near_zero(value: float, condition: float, what: str = OUTPUT) -> str:
    """What it means that an explained output is 0, or close to it beside what it is the sum of."""
    if value == 0:
        return f"{what} is 0, and nothing can be a share of it. R.in_units(...) says what it is the sum of."
    if condition == 0:
        return f"{what} is {value:.3g}, which is 0 up to rounding: what it is the sum of cancels."
    return (
        f"{what} is {value:.3g}, close to 0: what it is the sum of is {condition:.3g} times as large in"
        " absolute values, so that shares of it are large and of both signs. R.in_units(...) answers in units of the"
        " output."
    )


def blame_output(
    found: Sequence[tuple[Said, str]], condition: Sequence[float], value: Sequence[float], what: str = OUTPUT
) -> list[tuple[Said, str]]:
    """Errors or cautions of samples whose explained output is close to 0 begin with that."""
    said: list[tuple[Said, str]] = []
    for i, text in found:
        if i is None or 0 < condition[i] <= NEAR_ZERO:
            said.append((i, text))
        else:
            reason = near_zero(value[i], condition[i], what)
            said.append((i, reason if condition[i] == 0 else f"{reason} {text}"))
    return said


def deviations(differs: Deviation, batch: int) -> list[tuple[int, str]]:
    """A tape that does not compute what the model computed is an error of every sample."""
    text = (
        f"Layer {differs.node.name!r} does not come out again: its step ({differs.node.function}) gives other values"
        f" than the model had there, by {differs.share:.2g} of the largest."
    )
    return [(i, text) for i in range(batch)]

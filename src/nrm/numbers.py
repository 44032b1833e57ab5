"""Numbers as people write them: shares, few digits, bytes."""

from __future__ import annotations

POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def percent(share: float, digits: int | None = None) -> str:
    """A share in percent, with so many decimals; else two digits below 10 %, and whole numbers above.

    >>> percent(0.0344), percent(-0.123), percent(1.0), percent(0.0), percent(0.12345, 2)
    ('3.4 %', '-12 %', '100 %', '0 %', '12.35 %')
    """
    if digits is not None:
        return f"{100 * share:.{digits}f} %"
    text = f"{100 * share:.1f}" if abs(share) < 0.0995 else f"{100 * share:.0f}"
    return f"{text if float(text) else 0} %"


def short(number: float, plus: bool = False) -> str:
    """Two digits, as they are printed.

    >>> short(0.00213), short(-3.4e-5), short(12.0, plus=True)
    ('0.0021', '−3.4·10⁻⁵', '+12')
    """
    mantissa, _, exponent = f"{number:{'+' if plus else ''}.2g}".partition("e")
    return with_minus(mantissa) + (f"·10{str(int(exponent)).translate(POWERS)}" if exponent else "")


def with_minus(text: str) -> str:
    """A number with the sign that print has for it, where the hyphen of terminals would look short."""
    return text.replace("-", "\N{MINUS SIGN}")


def size_text(nbytes: float) -> str:
    """Bytes as people write them.

    >>> size_text(900), size_text(3 * 2**20), size_text(5 * 2**30)
    ('900 bytes', '3.00 MiB', '5.00 GiB')
    """
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} bytes"

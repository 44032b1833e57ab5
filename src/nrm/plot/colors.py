"""The colour map of relevance: white at zero, red above, blue below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nrm.extras import extra

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

# Equal steps of OKLab lightness from white (1.00) to 0.45 on both sides, at nearly the largest chroma that sRGB has
# there; the tests hold these colours to that.
ABOVE = ("#fee1db", "#fec1b6", "#fd9f90", "#fd7868", "#fb443c", "#e22629", "#c30f1f", "#a10b1b")
BELOW = ("#d7ebfe", "#b0d6fe", "#8ac0fd", "#65a9fc", "#3f8ffc", "#1373fb", "#0e5ae4", "#0f41cc")
LEVELS = 511  # odd, so that zero is one level of its own: exactly white


def diverging() -> Colormap:
    """The diverging map of :func:`nrm.plot.heatmap`: white in the middle, lightness falls alike on both sides.

    Red and blue differ for every common form of colour blindness.

    >>> from matplotlib.colors import to_hex
    >>> [to_hex(diverging()(x)) for x in (0.0, 0.5, 1.0)]
    ['#0f41cc', '#ffffff', '#a10b1b']
    """
    with extra("viz", "nrm.plot.diverging"):
        from matplotlib.colors import LinearSegmentedColormap
    return LinearSegmentedColormap.from_list("nrm", [*reversed(BELOW), "#ffffff", *ABOVE], N=LEVELS)


def color_at(level: float) -> str:
    """The colour of a relevance between -1 and 1 (beyond: clipped), for pictures without matplotlib.

    >>> color_at(-1.0), color_at(0.0), color_at(1.0), color_at(7.0)
    ('#0f41cc', '#ffffff', '#a10b1b', '#a10b1b')
    """
    stops = ("#ffffff", *(ABOVE if level > 0 else BELOW))
    place = min(abs(level), 1.0) * (len(stops) - 1)
    low = min(int(place), len(stops) - 2)
    one, two = (tuple(int(stop[k : k + 2], 16) for k in (1, 3, 5)) for stop in stops[low : low + 2])
    mixed = (round(a + (b - a) * (place - low)) for a, b in zip(one, two, strict=True))
    return "#" + "".join(f"{c:02x}" for c in mixed)

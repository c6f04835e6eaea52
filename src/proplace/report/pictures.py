"""Pictures for the page: each drawn for light and dark, with an alternative text and a caption."""

from __future__ import annotations

import base64
import io
import re
import warnings
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.report.geometry import needed, region_picture
from proplace.report.plots import (
    FACTORS,
    draw_margins,
    draw_region,
    draw_validity,
    held,
    percent,
)
from proplace.report.style import DARK, LIGHT, new_figure, style

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from proplace.explanations import Explanation
    from proplace.network import Array, Network
    from proplace.report.words import Wording

_PIXELS = 96  # an inch of CSS
_SQUARE, _WIDE = (4.4, 4.7), (4.4, 3.6)  # inches; small, so that text is readable on a phone


@dataclass(frozen=True)
class Picture:
    """One picture: two images as data addresses, its size, and its words."""

    light: str
    dark: str
    width: int
    height: int
    alt: str
    caption: str


def region_view(e: Explanation, plain: Array | None, wording: Wording) -> Picture:
    """Where the person, the answer and the neighbours lie."""
    picture = region_picture(e, also=plain)
    outcome = wording.outcome(e.target)
    count = len(picture.neighbours)
    people = f"the {count} nearest robust rows" if count != 1 else "the only robust row"
    alt = (
        f"Map of the plausible region. The {wording.person} is not {outcome} today; "
        f"the answer lies in the area in which every model within delta says {outcome}, "
        f"inside the hull of {people}."
    )
    if plain is not None:
        alt += f" The plain nearest answer lies at the edge of what today’s model calls {outcome}."
    plane = "The borders are those on this plane; points off it are shown at their projections."
    if picture.moved:
        plane = (
            f"The borders are those in the answer’s categories; the {wording.person}’s own differ, so "
            "the ring only shows the other values."
        )
    caption = (
        f"Dashed: the border of what today’s model calls {outcome}. Solid: the border of what every "
        f"model within delta calls {outcome}. The grey area is plausible: between real people whose "
        f"outcome is as sure. {plane}"
    )
    return _picture(
        lambda axes: draw_region(axes, picture, e, plain, wording),
        _SQUARE,
        alt,
        caption,
    )


def margins_view(
    ours: Array, plain: Array, e: Explanation, wording: Wording, *, several: bool = False
) -> Picture:
    """The worst margin against delta."""
    radius = needed(e).radius
    outcome = wording.outcome(e.target)
    first = "The robust answers" if several else "The robust answer"
    last = _lasts(ours, radius)
    caption = f"{first} stay{'' if several else 's'} {outcome} {last}"
    if plain.shape[1]:
        other = "the plain nearest ones" if several else "the plain nearest one"
        caption += f"; {other} {_lasts(plain, radius)}"
    caption += ". The curves show the least margin over all models so near: a proved bound."
    return _picture(
        lambda axes: draw_margins(axes, ours, plain, e, wording),
        _WIDE if several else _SQUARE,
        f"Curve of the worst margin against the largest change of any parameter. {caption}",
        caption,
    )


def validity_view(
    ours: Array, plain: Array, retrained: Sequence[Network], target: int, wording: Wording
) -> Picture:
    """On how many retrained networks the answers hold."""
    outcome, count = wording.outcome(target), len(retrained)
    caption = (
        f"After retraining ({count} models), robust answers are still {outcome} in "
        f"{percent(held(ours, retrained, target).mean())} of the cases"
    )
    if len(plain):
        caption += f", plain nearest ones in {percent(held(plain, retrained, target).mean())}"
    return _picture(
        lambda axes: draw_validity(axes, ours, plain, retrained, target, wording),
        _WIDE,
        f"Two bars. {caption}.",
        f"{caption}. This is measured, not proved, where a model moved by more than delta.",
    )


def _lasts(curves: Array, radius: float | None) -> str:
    """Up to which change all curves stay at or above 0, read off the curves."""
    least = curves.min(axis=1)
    below = np.flatnonzero(least < 0.0)
    if not len(below):
        end = float(FACTORS[-1])
        return f"up to {'and beyond ' if radius else ''}{_size(end, radius)}"
    n = int(below[0])
    if n == 0:
        return "not even in today’s model"
    step = least[n - 1] / (least[n - 1] - least[n])
    factor = float(FACTORS[n - 1] + step * (FACTORS[n] - FACTORS[n - 1]))
    if factor < 0.05:
        return "under hardly any change"
    return f"up to a change of about {_size(factor, radius)}"


def _size(factor: float, radius: float | None) -> str:
    return f"{factor:.2g} times delta" if radius is None else f"{factor * radius:.2g}"


def _picture(
    draw: Callable[[Axes], None], inches: tuple[float, float], alt: str, caption: str
) -> Picture:
    light = _svg(draw, inches)
    # Every colour comes from the palette, so the dark image needs no second drawing.
    to_dark = dict(zip(astuple(LIGHT), astuple(DARK), strict=True))
    colours = re.compile("|".join(to_dark))
    # Inside tags alone: between them is text, and a category may be called #ffffff.
    dark = re.sub(
        "<[^>]*>", lambda tag: colours.sub(lambda found: to_dark[found[0]], tag[0]), light
    )
    width, height = (round(_PIXELS * side) for side in inches)
    return Picture(_address(light), _address(dark), width, height, alt, caption.strip())


def _svg(draw: Callable[[Axes], None], inches: tuple[float, float]) -> str:
    """An SVG image: the same text each time."""
    with style(LIGHT), warnings.catch_warnings():
        # The browser has glyphs that the drawing font lacks; text is kept as text.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*missing.*")
        figure = new_figure(*inches)
        draw(figure.subplots())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _address(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"

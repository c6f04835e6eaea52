"""Pictures for the page: each drawn for light and dark, with an alternative text and a caption."""

from __future__ import annotations

import base64
import io
import math
import re
import warnings
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.explain.words import in_delta
from proplace.report.geometry import needed, region_picture
from proplace.report.plots import (
    FACTORS,
    draw_margins,
    draw_region,
    draw_validity,
    has_margins,
    held,
    percent,
)
from proplace.report.style import DARK, LIGHT, new_figure, style
from proplace.schema.amounts import number
from proplace.schema.features import Binary, Categorical

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from proplace.core.network import Array, Network
    from proplace.explain.results import Explanation, Setting
    from proplace.explain.words import Terms

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


def region_view(e: Explanation, plain: Array | None, terms: Terms) -> Picture:
    """Where the person, the answer and the neighbours lie."""
    picture = region_picture(e, also=plain)
    outcome, count = terms.outcome, len(picture.neighbours)
    delta = f"every model {in_delta(needed(e))}" if has_margins(e) else ""
    alt = f"Map. The {terms.person} is not {outcome} today; the {terms.answer} lies where the current "
    alt += f"model says {outcome}" + (f" and {delta} does." if delta else ".")
    caption = f"Dashed: the border of what the current model calls {outcome}. "
    if delta:
        caption += f"Solid: the border of what {delta} calls {outcome}. "
    if count:
        people = f"{count} robust neighbours" if count > 1 else "one robust neighbour"
        where = "in" if e.in_region else "outside"
        alt += f" It lies {where} the region of the {terms.person} and {people}."
        caption += f"The grey area holds all mixtures of the {terms.person} and {people}. "
    if picture.moved:
        caption += (
            f"The map shows people in the answer’s categories: the ring is the {terms.person} once "
            f"these have changed ({_categories(e)}). "
        )
    if picture.projected:
        caption += "The borders are those on this plane; neighbours off it are projected on it."
    return _picture(lambda axes: draw_region(axes, picture, e, terms), _SQUARE, alt, caption)


def _categories(e: Explanation) -> str:
    """The changes of category of an answer."""
    features = needed(e).schema.by_name
    return "; ".join(
        f"{claim.title}: {claim.was} → {claim.goal}"
        for claim in e.claims
        if isinstance(features[claim.name], (Binary, Categorical))
    )


def margins_view(
    ours: Array, plain: Array, e: Explanation, terms: Terms, *, several: bool = False
) -> Picture:
    """The worst margin against delta."""
    setting = needed(e)
    first = f"The {terms.answers} stay" if several else f"The {terms.answer} stays"
    caption = f"{first} {terms.outcome} {_lasts(ours, setting)}"
    if plain.shape[1]:
        other = terms.others if several else terms.other
        caption += f"; the {other} {_lasts(plain, setting)}"
    over = "of the box at that size" if setting.current.has_parameter_intervals else "so near"
    caption += f". The curves show the least margin over all networks {over}: a proved bound."
    what = (
        "size of the box"
        if setting.current.has_parameter_intervals
        else "largest change of any weight or bias"
    )
    return _picture(
        lambda axes: draw_margins(axes, ours, plain, e, terms),
        _WIDE if several else _SQUARE,
        f"Curve of the worst margin against the {what}. {caption}",
        caption,
    )


def validity_view(
    ours: Array, plain: Array, retrained: Sequence[Network], target: int, terms: Terms
) -> Picture:
    """On how many retrained networks the answers hold."""
    models = "1 retrained model" if len(retrained) == 1 else f"{len(retrained)} retrained models"
    caption = (
        f"Counted on {models}: the {terms.answers} on this page are still {terms.outcome} in "
        f"{cases(ours, retrained, target)}"
    )
    if len(plain):
        caption += f", the {terms.others} in {cases(plain, retrained, target)}"
    return _picture(
        lambda axes: draw_validity(axes, ours, plain, retrained, target, terms),
        _WIDE,
        f"{'Two bars' if len(plain) else 'One bar'}. {caption}.",
        f"{caption}. A case is one answer on one model.",
    )


def cases(rows: Array, retrained: Sequence[Network], target: int) -> str:
    """How many pairs of a row and a retrained network have the class: counted, and in percent."""
    share = held(rows, retrained, target)
    count = len(rows) * len(retrained)
    return (
        f"{round(float(share.sum()) * len(retrained))} of {count} cases ({percent(share.mean())})"
    )


def _lasts(curves: Array, setting: Setting) -> str:
    """Up to which change all curves are known to stay at or above 0: the last point that is."""
    below = np.flatnonzero(curves.min(axis=1) < 0.0)
    n = int(below[0]) if len(below) else len(FACTORS)
    if setting.current.has_parameter_intervals:
        return _lasts_in_box(n)
    radius = setting.current.radius
    if n == 0:
        return "not even in the current model"
    if n == 1:
        least = _span(float(FACTORS[1]), radius)
        return f"in the current model, but not proved under a change of {least}"
    return f"up to a change of at least {_span(float(FACTORS[n - 1]), radius)}"


def _lasts_in_box(n: int) -> str:
    """The same for a box: of size 0, it is the network in its middle, not the one in use."""
    if n == 0:
        return "not even in the middle of the box"
    if n == 1:
        return f"in the middle of the box, but not proved at {_times(float(FACTORS[1]))} its size"
    return f"up to at least {_times(float(FACTORS[n - 1]))} the size of the box"


def _span(factor: float, radius: float | None) -> str:
    """A share of delta, rounded towards 0: nothing is said of more than was shown."""
    if radius is None:
        return f"{_times(factor)} delta"
    change = factor * radius
    digit = 10.0 ** (math.floor(math.log10(change)) - 2)
    return number(float(f"{math.floor(change / digit + 1e-6) * digit:.3g}"))


def _times(factor: float) -> str:
    return f"{math.floor(100.0 * factor + 1e-9) / 100.0:g} times"


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

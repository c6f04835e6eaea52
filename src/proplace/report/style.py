"""Colours and type of the pictures, and the templates of the pages.

Colours are those of Okabe and Ito, which colour-blind readers can distinguish. Every line and mark
also differs in shape or dash. Templates escape what they show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proplace.core.errors import require
from proplace.core.text import clipped, visible

if TYPE_CHECKING:
    from collections.abc import Hashable

    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Palette:
    """Colours of a picture, on a light or a dark page."""

    ink: str
    soft: str
    page: str
    ours: str
    plain: str
    refused: str
    fragile: str
    robust: str


LIGHT = Palette(
    ink="#1f2933",
    soft="#66727f",
    page="#ffffff",
    ours="#0072b2",
    plain="#d55e00",
    refused="#fbe9df",
    fragile="#fdf6d8",
    robust="#d9ebf6",
)
DARK = Palette(
    ink="#e6eaee",
    soft="#9aa7b3",
    page="#1a2027",
    ours="#56b4e9",
    plain="#f0893a",
    refused="#3a2a21",
    fragile="#3a361f",
    robust="#1b3850",
)


def style(palette: Palette) -> Any:
    """Matplotlib's settings for a picture, as a context."""
    matplotlib = require("matplotlib", "plot", "drawing")
    return matplotlib.rc_context(
        {
            "font.family": "sans-serif",
            "font.size": 10.0,
            "text.color": palette.ink,
            "axes.edgecolor": palette.soft,
            "axes.labelcolor": palette.ink,
            "axes.facecolor": palette.page,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.facecolor": palette.page,
            "xtick.color": palette.soft,
            "ytick.color": palette.soft,
            "xtick.labelcolor": palette.ink,
            "ytick.labelcolor": palette.ink,
            "legend.frameon": False,
            "legend.fontsize": 9.0,
            # Labels come from users, whose own settings may read formulas into them.
            "text.usetex": False,
            "text.parse_math": True,  # without it, the backslash of ``drawn`` would be seen
            # Text stays text: browsers have glyphs that the drawing font may lack.
            "svg.fonttype": "none",
            "svg.hashsalt": "proplace",
        }
    )


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of some inches that belongs to no window and that a notebook shows."""
    require("matplotlib", "plot", "drawing")
    from proplace.report.figure import Drawing  # noqa: PLC0415  (matplotlib is optional)

    return Drawing(figsize=(width, height), layout="constrained")


def drawn(text: str, length: int = 48) -> str:
    """Text for a picture: seen as it is, not too long, and a dollar sign starts no formula."""
    return clipped(visible(text), length).replace("$", r"\$")


def templates(what: str) -> Any:
    """Return the templates. ``what`` names their user in the error about a missing package."""
    jinja2 = require("jinja2", "report", what)
    return jinja2.Environment(
        loader=jinja2.PackageLoader("proplace.report"),
        autoescape=True,  # names and categories come from the user's table
        finalize=literal,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )


def literal(value: object) -> object:
    """Spell out invisible characters of every value that a page shows."""
    return visible(value) if type(value) is str else value


def generator() -> str:
    """Return the name and version of this package."""
    from proplace import __version__  # noqa: PLC0415  (the package imports this module)

    return f"proplace {__version__}"


def label_of(index: Hashable) -> str:
    """Name a row, by all levels of its index."""
    return ", ".join(map(str, index)) if isinstance(index, tuple) else str(index)

"""Pictures of answers, drawn with matplotlib: the region, the worst-case margin, the changes.

Pictures of a page are drawn for light and dark, and have an alternative text and a caption.
"""

from __future__ import annotations

import base64
import io
import math
import re
import textwrap
import warnings
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import OptionError, require
from proplace.core.text import clipped, visible
from proplace.explain.words import ReportTerms, Wording, largest_first, short_networks
from proplace.report.geometry import (
    needed,
    no_region,
    plain_nearest,
    region_picture,
    worst_margins,
)
from proplace.report.style import DARK, LIGHT, drawn, new_figure, style
from proplace.schema.features import Binary, Categorical, Continuous, Ordinal
from proplace.schema.values import number

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from proplace.core.network import Array, Network
    from proplace.explain.results import Explanation, Explanations, Setting
    from proplace.report.geometry import Plane, RegionPicture
    from proplace.schema.rules import AnyFeature

FACTORS = np.linspace(0.0, 2.0, 25)
"""Multiples of delta at which curves of the worst-case margin are evaluated."""

_AT_DELTA = int(np.flatnonzero(FACTORS == 1.0)[0])
_ROW = 0.34  # inches of one changed feature
_LETTER, _SPACE = (
    0.027,
    0.06,
)  # shares of an axis: a letter at a tick, and the space between two ticks
_MAX_ROWS = 10  # changed features in one picture, the rest are the smallest and counted
_PANEL = 5.2  # inches of one of several panels
_PIXELS = 96  # an inch of CSS
_SQUARE, _WIDE = (4.4, 4.7), (4.4, 3.6)  # inches, small enough for text on a phone


def explanation_figure(e: Explanation, wording: Wording) -> Figure:
    """Draw the region, the worst-case margin against delta, and the changes of one answer."""
    needed(e)
    plain = plain_nearest(e)
    terms = ReportTerms.of([e], wording)
    draw: list[Callable[[Axes], None]] = []
    if not no_region(e):
        picture = region_picture(e, also=plain)
        draw.append(lambda axes: draw_region(axes, picture, e, terms))
    if has_margins(e):
        curves = margin_curves([e], [plain])
        draw.append(lambda axes: draw_margins(axes, *curves, e, terms))
    above = 4.7 if draw else 0.0
    below = _ROW * (min(len(e.changes), _MAX_ROWS + 1) + 1)
    with style(LIGHT):
        figure = new_figure(max(10.4, _PANEL * len(draw)) if draw else 8.6, above + below)
        if not draw:
            draw_changes(figure.subplots(), e, wording)
            return figure
        both: Any = figure.subfigures(2, 1, height_ratios=(above, below))
        upper, lower = both
        for panel, axes in zip(draw, upper.subplots(1, len(draw), squeeze=False)[0], strict=True):
            panel(axes)
        draw_changes(lower.subplots(), e, wording)
    return figure


def result_figure(
    result: Explanations,
    retrained: Sequence[Network],
    wording: Wording,
) -> Figure:
    """Draw worst-case margins of several answers against delta, and counts on retrained networks."""
    answers = [e for e in result if e.found]
    if not answers:
        raise OptionError("There is no answer to draw: no row was explained.", name="result")
    if not has_margins(answers[0]):
        raise OptionError("These answers have no delta to draw them against.", name="result")
    plain = [plain_nearest(e) for e in answers]
    terms = ReportTerms.of(result, wording)
    with style(LIGHT):
        figure = new_figure(9.6 if retrained else 6.2, 3.9)
        axes = figure.subplots(
            1, 2 if retrained else 1, squeeze=False, width_ratios=(3, 2) if retrained else None
        )[0]
        draw_margins(axes[0], *margin_curves(answers, plain), answers[0], terms)
        if retrained:
            points = np.array([e.encoded_counterfactual for e in answers])
            others = np.array([row for row in plain if row is not None])
            draw_validity(axes[1], points, others, retrained, answers[0].target, terms)
    return figure


def has_margins(e: Explanation) -> bool:
    """Test if the guarantee covers more than one network, so that margins depend on delta."""
    shifts = needed(e).current.shifts
    return not shifts.is_single_network


def margin_curves(
    answers: Sequence[Explanation], plain: Sequence[Array | None]
) -> tuple[Array, Array]:
    """Return worst-case margins at ``FACTORS`` times delta: of answers, and of plain nearest points."""
    ours = np.array([e.encoded_counterfactual for e in answers])
    others = [row for row in plain if row is not None]
    rows = np.vstack([ours, *others])
    curves = worst_margins(answers[0], rows, FACTORS)
    return curves[:, : len(ours)], curves[:, len(ours) :]


def draw_region(
    axes: Axes,
    picture: RegionPicture,
    e: Explanation,
    terms: ReportTerms,
) -> None:
    """Draw the map of the person, the answer and the neighbours."""
    p = picture
    scales = [_axis(e, p.plane, i) for i in (0, 1)]
    factor, shift = np.array([(s.factor, s.shift) for s in scales]).T

    def at(points: Array) -> Array:
        return np.asarray(points * factor + shift)

    a, b = at(np.column_stack([p.a, np.zeros_like(p.a)]))[:, 0], p.b * factor[1] + shift[1]
    axes.set_facecolor(LIGHT.refused)
    for field, fill, line, dash in (
        (p.margin, LIGHT.fragile, LIGHT.plain, "dashed"),
        (p.worst, LIGHT.robust, LIGHT.ours, "solid"),
    ):
        if (field >= 0.0).all():
            axes.set_facecolor(fill)
        elif (field >= 0.0).any():
            axes.contourf(a, b, field, levels=[0.0, np.inf], colors=[fill])
            axes.contour(a, b, field, levels=[0.0], colors=[line], linestyles=dash, linewidths=1.6)
    hull = at(p.hull)
    axes.fill(*hull.T, facecolor=LIGHT.ink, alpha=0.08, edgecolor="none")
    axes.plot(*np.vstack([hull, hull[:1]]).T, color=LIGHT.soft, linewidth=1.0)
    near = at(p.neighbours)
    axes.scatter(near[:, 0], near[:, 1], s=15, color=LIGHT.soft, linewidths=0)
    _arrow(axes, at(p.person), at(p.answer))
    _mark(axes, at(p.person), "o", LIGHT.page if p.moved else LIGHT.ink, edge=LIGHT.ink)
    if p.other is not None:
        _mark(axes, at(p.other), "^", LIGHT.plain)
    _mark(axes, at(p.answer), "D", LIGHT.ours)
    axes.set_xlim(a[0], a[-1])
    axes.set_ylim(b[0], b[-1])
    axes.set_xlabel(drawn(scales[0].label, 52))
    axes.set_ylabel(drawn(scales[1].label, 38))
    across = (axes.xaxis, a, _LETTER), (axes.yaxis, b, 0.0)
    for (axis, ends, letter), scale in zip(across, scales, strict=True):
        if scale.ticks is None:
            axis.set_major_formatter(lambda value, _: number(float(f"{value:.6g}")))
        else:
            ticks = _apart(scale.ticks, float(ends[0]), float(ends[-1]), letter)
            axis.set_ticks([t for t, _ in ticks], [drawn(w) for _, w in ticks])
    if scales[0].ticks is None:
        axes.locator_params(axis="x", nbins=5)
    where = "by the whole set" if needed(e).current.has_parameter_intervals else "within delta"
    _region_legend(axes, p, terms, where if has_margins(e) else "")


def draw_margins(
    axes: Axes,
    ours: Array,
    plain: Array,
    e: Explanation,
    terms: ReportTerms,
) -> None:
    """Draw the worst-case margin as delta grows."""
    setting = needed(e)
    radius = setting.current.radius
    unit = radius or 1.0
    deltas = FACTORS * unit
    both = np.hstack([ours, plain])
    low, high = min(float(both.min()), 0.0), max(float(both.max()), 0.0)
    room = 0.07 * max(high - low, 1e-9)
    axes.set_ylim(low - room, high + 2.0 * room)
    axes.set_xlim(deltas[0], deltas[-1])
    axes.axhspan(low - room, 0.0, color=LIGHT.refused, linewidth=0)
    axes.axhline(0.0, color=LIGHT.ink, linewidth=0.9)
    axes.axvline(unit, color=LIGHT.soft, linewidth=1.2, linestyle=(0, (1, 2)))
    axes.annotate(
        _unit(setting),
        (unit, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(5, -3),
        textcoords="offset points",
        va="top",
        color=LIGHT.soft,
    )
    for values, colour, dash, mark, one, many_of in (
        (plain, LIGHT.plain, (0, (5, 2)), "^", terms.other, terms.others),
        (ours, LIGHT.ours, "solid", "D", terms.answer, terms.answers),
    ):
        several, many = values.shape[1] > 1, values.shape[1] > 12
        lines = axes.plot(
            deltas,
            values,
            color=colour,
            linestyle=dash,
            linewidth=0.9 if many else 1.4 if several else 2.2,
            alpha=0.75 if many else 1.0,
            marker=None if many else mark,
            markevery=[_AT_DELTA],
            markersize=5 if several else 8,
            markeredgecolor=LIGHT.page,
        )
        if lines:
            lines[0].set_label(drawn(many_of if several else one))
    axes.set_xlabel(_measure(setting))
    axes.set_ylabel(drawn(f"worst-case margin ({terms.outcome} above 0)"))
    axes.locator_params(axis="x", nbins=5)
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.17), ncols=2, borderaxespad=0.2)


def _unit(setting: Setting) -> str:
    """Return the label of the line at delta."""
    if setting.current.has_parameter_intervals:
        return "as certified"
    return "delta" if setting.current.radius is None else f"delta = {setting.current.radius:.4g}"


def _measure(setting: Setting) -> str:
    """Return the label of the axis of delta."""
    if setting.current.has_parameter_intervals:
        return "size of the set, 1 = as certified"
    return (
        "share of the allowed change"
        if setting.current.radius is None
        else "largest change of any parameter"
    )


def draw_changes(axes: Axes, e: Explanation, wording: Wording) -> None:
    """Draw each changed feature as an arrow on its range, the largest change first.

    The title is on the left, the values are on the right.
    """
    features, changes = needed(e).schema.by_name, largest_first(e.claims)
    rows = min(len(changes), _MAX_ROWS)
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(rows + (len(changes) > rows), -1.0)
    axes.set_axis_off()
    at: dict[str, Any] = {
        "xycoords": axes.get_yaxis_transform(),
        "textcoords": "offset points",
        "va": "center",
    }
    for n, change in enumerate(changes[:rows]):
        feature, both = features.get(change.name), e.changes_by_feature[change.name]
        before, after = _places(feature, *both, reach=changes[0].size)
        new, old = change.pair()
        values = f"{old} → {new}"
        axes.annotate(
            drawn(change.title, 34), (0.0, n), xytext=(-6, 0), ha="right", weight="bold", **at
        )
        axes.annotate(drawn(values, 52), (1.0, n), xytext=(6, 0), color=LIGHT.soft, **at)
        axes.plot([0.0, 1.0], [n, n], color=LIGHT.soft, linewidth=4, alpha=0.3)
        _arrow(axes, np.array([before, n]), np.array([after, n]))
        _mark(axes, np.array([before, n]), "o", LIGHT.ink)
        _mark(axes, np.array([after, n]), "D", LIGHT.ours)
    if len(changes) > rows:
        rest = len(changes) - rows
        text = f"and {rest} smaller change{'s' if rest > 1 else ''}"
        axes.annotate(text, (0.0, rows), xytext=(-6, 0), ha="right", color=LIGHT.soft, **at)


def draw_validity(
    axes: Axes,
    ours: Array,
    plain: Array,
    retrained: Sequence[Network],
    target: int,
    terms: ReportTerms,
) -> None:
    """Draw the share of retrained networks that accept the answers."""
    groups = [
        (terms.others, plain, LIGHT.plain),
        (terms.answers, ours, LIGHT.ours),
    ]
    groups = [group for group in groups if len(group[1])]
    for n, (_, rows, colour) in enumerate(groups):
        share = held(rows, retrained, target).mean()
        axes.bar(n, share, color=colour, width=0.5)
        axes.annotate(
            percent(share),
            (n, share),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            weight="bold",
        )
    names = [textwrap.fill(drawn(name), 13, break_long_words=False) for name, _, _ in groups]
    axes.set_xticks(range(len(groups)), names)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_ylim(0.0, 1.12)
    axes.set_yticks([0.0, 0.5, 1.0], ["0%", "50%", "100%"])
    models = "models" if len(retrained) > 1 else "model"
    axes.set_ylabel(drawn(f"{terms.outcome} by {len(retrained)} retrained {models}"))


def held(rows: Array, retrained: Sequence[Network], target: int) -> Array:
    """Return the share of retrained networks that give each row the class."""
    kept = np.array([net.predict(rows) == target for net in retrained])
    return np.asarray(kept.mean(axis=0))


def percent(share: float) -> str:
    """Write a share in percent, 0% and 100% only if they are exact.

    Examples
    --------
    >>> percent(0.5), percent(0.9999), percent(1.0), percent(1e-5)
    ('50%', '99%', '100%', '1%')
    """
    whole = round(100.0 * share)
    if 0.0 < share < 1.0:
        whole = min(max(whole, 1), 99)
    return f"{whole}%"


# -- inside --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    """Axis of the map: ``factor * c + shift``, a label, named ticks."""

    label: str
    factor: float
    shift: float
    ticks: Sequence[tuple[float, str]] | None = None


def _axis(e: Explanation, plane: Plane, i: int) -> _Axis:
    schema = needed(e).schema
    j = plane.columns[i]
    feature = schema.features[schema.columns[j].feature]
    assert isinstance(feature, (Continuous, Ordinal))  # noqa: S101  (planes avoid categories)
    ticks = None
    if isinstance(feature, Ordinal):
        named = zip(feature.numbers, feature.levels, strict=True)
        ticks = [(v, clipped(visible(str(w)), 20)) for v, w in named]
    unit = (feature.unit or "").rpartition("|")[2]
    return _Axis(
        f"{feature.title}, {unit}" if unit else feature.title,
        feature.scale,
        feature.offset + feature.scale * float(plane.origin[j]),
        ticks,
    )


def _apart(
    ticks: Sequence[tuple[float, str]], low: float, high: float, letter: float
) -> list[tuple[float, str]]:
    """Choose ticks of an axis whose names do not overlap, earlier ticks first.

    ``letter`` is the width of a letter as a share of the axis.
    """
    kept: list[tuple[float, str]] = []
    for place, name in ticks:
        if not low <= place <= high:
            continue
        needed = [(len(name) + len(other)) / 2 * letter + _SPACE for _, other in kept]
        away = [abs(place - at) / (high - low) for at, _ in kept]
        if all(far >= least for far, least in zip(away, needed, strict=True)):
            kept.append((place, name))
    return kept


def _places(
    feature: AnyFeature | None, before: Any, after: Any, *, reach: float
) -> tuple[float, float]:
    """Return the places of two values on a line from 0 to 1: the range of the feature.

    Features without a range share a scale, on which a change of ``reach`` (encoded) is half of the line.
    """
    if isinstance(feature, Ordinal):
        before, after = (feature.numbers[feature.levels.index(v)] for v in (before, after))
        low, high = feature.numbers[0], feature.numbers[-1]
    elif isinstance(feature, Continuous) and None not in (feature.lower, feature.upper):
        low, high = float(feature.lower or 0.0), float(feature.upper or 0.0)
    elif isinstance(feature, Continuous):
        middle = (before + after) / 2.0
        low, high = middle - reach * feature.scale, middle + reach * feature.scale
    else:
        return 0.0, 1.0  # other categories have no place between
    return (float(before) - low) / (high - low), (float(after) - low) / (high - low)


def _arrow(axes: Axes, start: Array, end: Array) -> None:
    axes.annotate(
        "",
        (float(end[0]), float(end[1])),
        (float(start[0]), float(start[1])),
        arrowprops={"arrowstyle": "-|>", "color": LIGHT.ink, "shrinkA": 5, "shrinkB": 6},
    )


def _mark(axes: Axes, spot: Array, shape: str, colour: str, edge: str = LIGHT.page) -> None:
    axes.scatter(spot[0], spot[1], s=74, marker=shape, color=colour, edgecolors=edge, zorder=4)


def _region_legend(axes: Axes, p: RegionPicture, terms: ReportTerms, where: str) -> None:
    lines = require("matplotlib.lines", "plot", "drawing")

    def mark(shape: str, colour: str, label: str, fill: str | None = None) -> Any:
        return lines.Line2D(
            [], [], linestyle="none", marker=shape, color=colour, label=drawn(label),
            markerfacecolor=fill or colour, markersize=6,
        )  # fmt: skip

    def line(colour: str, dash: str, label: str) -> Any:
        return lines.Line2D([], [], color=colour, linestyle=dash, label=drawn(label))

    now = mark("o", LIGHT.ink, "now, in the new categories", "none") if p.moved else None
    entries = [now or mark("o", LIGHT.ink, "now"), mark("D", LIGHT.ours, terms.answer)]
    if p.other is not None:
        entries.append(mark("^", LIGHT.plain, terms.other))
    if len(p.neighbours):
        entries.append(mark(".", LIGHT.soft, "robust neighbours"))
        entries.append(line(LIGHT.soft, "solid", "their mixtures"))
    entries.append(line(LIGHT.plain, "dashed", f"{terms.outcome} today"))
    if where:
        entries.append(line(LIGHT.ours, "solid", f"{terms.outcome} {where}"))
    axes.legend(
        handles=entries,
        loc="upper left",
        bbox_to_anchor=(-0.12, -0.17),
        ncols=2,
        handlelength=1.6,
        columnspacing=1.0,
        borderaxespad=0.2,
    )


# -- pictures of a page ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Picture:
    """One picture: two images as data addresses, its size, and its words."""

    light: str
    dark: str
    width: int
    height: int
    alt: str
    caption: str


def region_view(e: Explanation, plain: Array | None, terms: ReportTerms) -> Picture:
    """Return the map of the person, the answer and the neighbours."""
    picture = region_picture(e, also=plain)
    outcome, count = terms.outcome, len(picture.neighbours)
    delta = f"every model {short_networks(needed(e))}" if has_margins(e) else ""
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
    """Write the changes of categories of an answer."""
    features = needed(e).schema.by_name
    return "; ".join(
        f"{claim.title}: {claim.was} → {claim.goal}"
        for claim in e.claims
        if isinstance(features[claim.name], (Binary, Categorical))
    )


def margins_view(
    ours: Array, plain: Array, e: Explanation, terms: ReportTerms, *, several: bool = False
) -> Picture:
    """Return the curves of the worst-case margin against delta."""
    setting = needed(e)
    first = f"The {terms.answers} stay" if several else f"The {terms.answer} stays"
    caption = f"{first} {terms.outcome} {_lasts(ours, setting)}"
    if plain.shape[1]:
        other = terms.others if several else terms.other
        caption += f"; the {other} {_lasts(plain, setting)}"
    over = "of the set at that size" if setting.current.has_parameter_intervals else "so near"
    caption += f". The curves show the worst-case margin over all networks {over}, a proved bound."
    what = (
        "size of the set"
        if setting.current.has_parameter_intervals
        else "largest change of any weight or bias"
    )
    return _picture(
        lambda axes: draw_margins(axes, ours, plain, e, terms),
        _WIDE if several else _SQUARE,
        f"Curve of the worst-case margin against the {what}. {caption}",
        caption,
    )


def cases(rows: Array, retrained: Sequence[Network], target: int) -> str:
    """Count the pairs of a row and a retrained network that have the class, also in percent."""
    share = held(rows, retrained, target)
    count = len(rows) * len(retrained)
    return (
        f"{round(float(share.sum()) * len(retrained))} of {count} cases ({percent(share.mean())})"
    )


def _lasts(curves: Array, setting: Setting) -> str:
    """Write the largest change up to which all curves stay at or above 0."""
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
    """Write the same for a shift set. At size 0 it is the network in its middle."""
    if n == 0:
        return "not even in the middle of the set"
    if n == 1:
        return f"in the middle of the set, but not proved at {_times(float(FACTORS[1]))} its size"
    return f"up to at least {_times(float(FACTORS[n - 1]))} the size of the set"


def _span(factor: float, radius: float | None) -> str:
    """Write a share of delta, rounded towards 0."""
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
    """Return an SVG image, the same text each time."""
    with style(LIGHT), warnings.catch_warnings():
        # Text stays text: the browser has glyphs that the drawing font lacks.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*missing.*")
        figure = new_figure(*inches)
        draw(figure.subplots())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _address(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"

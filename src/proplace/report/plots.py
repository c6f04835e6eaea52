"""Pictures of answers, drawn with matplotlib: the region, the worst margin, the changes."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import OptionError, require
from proplace.core.text import clipped, visible
from proplace.explain.words import Terms, Wording, largest_first
from proplace.report.geometry import (
    needed,
    no_region,
    plain_nearest,
    region_picture,
    worst_margins,
)
from proplace.report.style import LIGHT, drawn, new_figure, style
from proplace.schema.amounts import number
from proplace.schema.features import Continuous, Ordinal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from proplace.core.network import Array, Network
    from proplace.explain.results import Explanation, Explanations, Setting
    from proplace.report.geometry import Plane, RegionPicture
    from proplace.schema.rules import AnyFeature

FACTORS = np.linspace(0.0, 2.0, 25)
"""Multiples of delta at which curves of the worst margin are evaluated."""

_AT_DELTA = int(np.flatnonzero(FACTORS == 1.0)[0])
_ROW = 0.34  # inches of one changed feature
_LETTER, _SPACE = 0.027, 0.06  # a letter at a tick, and the room between two ticks, of an axis
_MOST_ROWS = 10  # changed features in one picture; the rest are the smallest, and counted
_PANEL = 5.2  # inches of one of several panels


def explanation_figure(e: Explanation, wording: Wording) -> Figure:
    """The region, the worst margin against delta, and below them the changes of one answer."""
    needed(e)
    plain = plain_nearest(e)
    terms = Terms.of([e], wording)
    draw: list[Callable[[Axes], None]] = []
    if not no_region(e):
        picture = region_picture(e, also=plain)
        draw.append(lambda axes: draw_region(axes, picture, e, terms))
    if has_margins(e):
        curves = margin_curves([e], [plain])
        draw.append(lambda axes: draw_margins(axes, *curves, e, terms))
    above = 4.7 if draw else 0.0
    below = _ROW * (min(len(e.changes), _MOST_ROWS + 1) + 1)
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
    """Worst margins of several answers against delta, and their fate on retrained networks."""
    answers = [e for e in result if e.found]
    if not answers:
        raise OptionError("there is no answer to draw: no row was explained", name="result")
    if not has_margins(answers[0]):
        raise OptionError("these answers know no delta to draw them against", name="result")
    plain = [plain_nearest(e) for e in answers]
    terms = Terms.of(result, wording)
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
    """Whether there is a delta to draw the worst margin against."""
    shifts = needed(e).current.shifts
    return not shifts.is_single_network


def margin_curves(
    answers: Sequence[Explanation], plain: Sequence[Array | None]
) -> tuple[Array, Array]:
    """Worst margins at ``FACTORS`` times delta: of the answers, and of the plain nearest points."""
    ours = np.array([e.encoded_counterfactual for e in answers])
    others = [row for row in plain if row is not None]
    rows = np.vstack([ours, *others])
    curves = worst_margins(answers[0], rows, FACTORS)
    return curves[:, : len(ours)], curves[:, len(ours) :]


def draw_region(
    axes: Axes,
    picture: RegionPicture,
    e: Explanation,
    terms: Terms,
) -> None:
    """Draw where the person, the answer and the neighbours lie."""
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
    terms: Terms,
) -> None:
    """Draw the least margin over Delta as delta grows."""
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
    axes.set_ylabel(drawn(f"worst margin ({terms.outcome} above 0)"))
    axes.locator_params(axis="x", nbins=5)
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.17), ncols=2, borderaxespad=0.2)


def _unit(setting: Setting) -> str:
    """What the line at delta is called."""
    if setting.current.has_parameter_intervals:
        return "as certified"
    return "delta" if setting.current.radius is None else f"delta = {setting.current.radius:.4g}"


def _measure(setting: Setting) -> str:
    """What the axis of the worst margin shows."""
    if setting.current.has_parameter_intervals:
        return "size of the box, 1 = as certified"
    return (
        "share of the allowed change"
        if setting.current.radius is None
        else "largest change of any parameter"
    )


def draw_changes(axes: Axes, e: Explanation, wording: Wording) -> None:
    """Draw each changed feature on its range, from where it is to where it must be.

    One line each, the largest change first: the title on the left, the values on the right.
    """
    features, changes = needed(e).schema.by_name, largest_first(e.claims)
    rows = min(len(changes), _MOST_ROWS)
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(rows + (len(changes) > rows), -1.0)
    axes.set_axis_off()
    at: dict[str, Any] = {
        "xycoords": axes.get_yaxis_transform(),
        "textcoords": "offset points",
        "va": "center",
    }
    for n, change in enumerate(changes[:rows]):
        feature, both = features.get(change.name), e.changed[change.name]
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
    terms: Terms,
) -> None:
    """Draw on how many retrained networks answers still hold."""
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
    """Share of retrained networks on which each row still has the class."""
    kept = np.array([net.predict(rows) == target for net in retrained])
    return np.asarray(kept.mean(axis=0))


def percent(share: float) -> str:
    """A share in percent that never says 0% or 100% of what is not.

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
    """How a coordinate of the plane is shown: ``factor * c + shift``, a label, named ticks."""

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
    """Ticks within an axis that leave each other room, the first of them before the others.

    ``letter`` is the width of one as a share of the axis.
    """
    kept: list[tuple[float, str]] = []
    for place, name in ticks:
        if not low <= place <= high:
            continue
        room = [(len(name) + len(other)) / 2 * letter + _SPACE for _, other in kept]
        away = [abs(place - at) / (high - low) for at, _ in kept]
        if all(far >= needs for far, needs in zip(away, room, strict=True)):
            kept.append((place, name))
    return kept


def _places(
    feature: AnyFeature | None, before: Any, after: Any, *, reach: float
) -> tuple[float, float]:
    """Where two values lie on a line from 0 to 1: the feature's range, if it has one.

    Features without one share a scale, on which a change of ``reach`` (encoded) is half of the line.
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


def _region_legend(axes: Axes, p: RegionPicture, terms: Terms, where: str) -> None:
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

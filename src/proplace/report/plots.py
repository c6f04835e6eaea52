"""Pictures of answers, drawn with matplotlib: the region, the worst margin, the changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.errors import OptionError
from proplace.optional import require
from proplace.report.geometry import needed, plain_nearest, region_picture, worst_margins
from proplace.report.style import LIGHT, drawn, new_figure, style
from proplace.report.words import Wording, in_words
from proplace.schema.amounts import number
from proplace.schema.features import Continuous, Ordinal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from proplace.explanations import Explanation
    from proplace.network import Array, Network
    from proplace.report.geometry import Plane, RegionPicture
    from proplace.schema.rules import AnyFeature

FACTORS = np.linspace(0.0, 2.0, 25)
"""Multiples of delta at which curves of the worst margin are evaluated."""

_AT_DELTA = int(np.flatnonzero(FACTORS == 1.0)[0])
_PLAIN, _OURS = "plain nearest answer", "robust answer"


def explanation_figure(e: Explanation, wording: Wording) -> Figure:
    """The region, the worst margin against delta, and the changes of one answer, side by side."""
    needed(e)
    plain = plain_nearest(e)
    with style(LIGHT):
        figure = new_figure(13.2, 4.6)
        axes = figure.subplots(1, 3, width_ratios=(1.2, 1.1, 1.0))
        if has_region(e):
            draw_region(axes[0], region_picture(e, also=plain), e, plain, wording)
        else:
            axes[0].set_axis_off()
        if has_margins(e):
            draw_margins(axes[1], *margin_curves([e], [plain]), e, wording)
        else:
            axes[1].set_axis_off()
        draw_changes(axes[2], e, wording)
    return figure


def result_figure(
    answers: Sequence[Explanation],
    plain: Sequence[Array | None],
    retrained: Sequence[Network],
    wording: Wording,
) -> Figure:
    """Worst margins of several answers against delta, and their fate on retrained networks."""
    if not answers:
        raise OptionError("there is no answer to draw: no row was explained")
    if not has_margins(answers[0]):
        raise OptionError(
            "these answers know no delta to draw them against; draw robust ones with against=these"
        )
    with style(LIGHT):
        figure = new_figure(9.6 if retrained else 6.2, 3.9)
        axes = figure.subplots(
            1, 2 if retrained else 1, squeeze=False, width_ratios=(3, 2) if retrained else None
        )[0]
        draw_margins(axes[0], *margin_curves(answers, plain), answers[0], wording)
        if retrained:
            points = np.array([e.point for e in answers])
            others = np.array([row for row in plain if row is not None])
            draw_validity(axes[1], points, others, retrained, answers[0].target, wording)
    return figure


def has_region(e: Explanation) -> bool:
    """Whether there is a plane to draw the region on."""
    known = e.setting is not None and e.setting.distance is not None  # not read from a folder
    return known and e.found and e.x is not None and len(e.x) > 1


def has_margins(e: Explanation) -> bool:
    """Whether there is a delta to draw the worst margin against."""
    shifts = needed(e).shifts
    return any(radius > 0.0 for radius in (*shifts.weight, *shifts.bias))


def margin_curves(
    answers: Sequence[Explanation], plain: Sequence[Array | None]
) -> tuple[Array, Array]:
    """Worst margins at ``FACTORS`` times delta: of the answers, and of the plain nearest points."""
    ours = np.array([e.point for e in answers])
    others = [row for row in plain if row is not None]
    rows = np.vstack([ours, *others])
    curves = worst_margins(answers[0], rows, FACTORS)
    return curves[:, : len(ours)], curves[:, len(ours) :]


def draw_region(
    axes: Axes,
    picture: RegionPicture,
    e: Explanation,
    plain: Array | None,
    wording: Wording,
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
    near, far = at(p.neighbours[p.inside]), at(p.neighbours[~p.inside])
    axes.scatter(near[:, 0], near[:, 1], s=15, color=LIGHT.soft, linewidths=0)
    axes.scatter(
        far[:, 0], far[:, 1], s=15, facecolors="none", edgecolors=LIGHT.soft, linewidths=0.8
    )
    _arrow(axes, at(p.person), at(p.answer))
    _mark(axes, at(p.person), "o", LIGHT.page if p.moved else LIGHT.ink, edge=LIGHT.ink)
    if plain is not None:
        _mark(axes, at(p.plane.coordinates(plain)[0]), "^", LIGHT.plain)
    _mark(axes, at(p.answer), "D", LIGHT.ours)
    axes.set_xlim(a[0], a[-1])
    axes.set_ylim(b[0], b[-1])
    axes.set_xlabel(drawn(scales[0].label, 52))
    axes.set_ylabel(drawn(scales[1].label, 44))
    for axis, scale in zip((axes.xaxis, axes.yaxis), scales, strict=True):
        if scale.ticks is None:
            axis.set_major_formatter(lambda value, _: number(value))
        else:
            axis.set_ticks([t for t, _ in scale.ticks], [drawn(w) for _, w in scale.ticks])
    if scales[0].ticks is None:
        axes.locator_params(axis="x", nbins=5)
    _region_legend(axes, p, wording.outcome(e.target), plain is not None)


def draw_margins(
    axes: Axes,
    ours: Array,
    plain: Array,
    e: Explanation,
    wording: Wording,
) -> None:
    """Draw the least margin over Delta as delta grows."""
    radius = needed(e).radius
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
        "delta" if radius is None else f"delta = {unit:.4g}",
        (unit, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(5, -3),
        textcoords="offset points",
        va="top",
        color=LIGHT.soft,
    )
    for values, colour, dash, mark, label in (
        (plain, LIGHT.plain, (0, (5, 2)), "^", _PLAIN),
        (ours, LIGHT.ours, "solid", "D", _OURS),
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
            lines[0].set_label(f"{label}s" if several else label)
    axes.set_xlabel(
        "share of the allowed change" if radius is None else "largest change of any parameter"
    )
    axes.set_ylabel(drawn(f"worst margin ({wording.outcome(e.target)} above 0)"))
    axes.locator_params(axis="x", nbins=5)
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.17), ncols=2, borderaxespad=0.2)


def draw_changes(axes: Axes, e: Explanation, wording: Wording) -> None:
    """Draw each changed feature on its range, from where it is to where it must be."""
    features = needed(e).schema.by_name
    words = in_words(e, wording).changes
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(max(len(words), 3) - 0.4, -0.7)
    axes.set_axis_off()
    changes = list(e.changes.iterrows())
    for n, ((name, row), change) in enumerate(zip(changes, words, strict=True)):
        before, after = _places(features.get(str(name)), row["from"], row["to"])
        title, values = change.title, f"{change.before} → {change.after}"
        axes.text(0.0, n - 0.24, drawn(title, 40), weight="bold", va="bottom")
        axes.text(0.0, n + 0.2, drawn(values, 52), color=LIGHT.soft, va="top")
        axes.plot([0.0, 1.0], [n, n], color=LIGHT.soft, linewidth=4, alpha=0.3)
        _arrow(axes, np.array([before, n]), np.array([after, n]))
        _mark(axes, np.array([before, n]), "o", LIGHT.ink)
        _mark(axes, np.array([after, n]), "D", LIGHT.ours)


def draw_validity(
    axes: Axes,
    ours: Array,
    plain: Array,
    retrained: Sequence[Network],
    target: int,
    wording: Wording,
) -> None:
    """Draw on how many retrained networks answers still hold."""
    groups = [
        ("plain nearest\nanswers", plain, LIGHT.plain),
        ("robust\nanswers", ours, LIGHT.ours),
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
    axes.set_xticks(range(len(groups)), [name for name, _, _ in groups])
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_ylim(0.0, 1.12)
    axes.set_yticks([0.0, 0.5, 1.0], ["0%", "50%", "100%"])
    axes.set_ylabel(drawn(f"{wording.outcome(target)} by {len(retrained)} retrained models"))


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
    if plane.columns is None:
        if i == 0:
            length = float(plane.coordinates(np.array(e.point))[0, 0]) or 1.0
            names = [schema.by_name[str(name)].title for name in e.changes.index]
            return _Axis(
                f"along the change ({', '.join(names)})",
                1.0 / length,
                0.0,
                [(0.0, "now"), (0.5, "halfway"), (1.0, "answer")],
            )
        main = schema.features[schema.columns[int(np.abs(plane.basis[1]).argmax())].feature]
        return _Axis(f"across it (mostly {main.title})", 1.0, 0.0, [])
    j = plane.columns[i]
    feature = schema.features[schema.columns[j].feature]
    assert isinstance(feature, (Continuous, Ordinal))  # noqa: S101  (planes avoid categories)
    ticks = None
    if isinstance(feature, Ordinal):
        ticks = [(v, str(w)) for v, w in zip(feature.numbers, feature.levels, strict=True)]
    unit = (feature.unit or "").rpartition("|")[2]
    return _Axis(
        f"{feature.title}, {unit}" if unit else feature.title,
        feature.scale,
        feature.offset + feature.scale * float(plane.origin[j]),
        ticks,
    )


def _places(feature: AnyFeature | None, before: Any, after: Any) -> tuple[float, float]:
    """Where two values lie on a line from 0 to 1: the feature's range, if it has one."""
    if isinstance(feature, Ordinal):
        before, after = (feature.numbers[feature.levels.index(v)] for v in (before, after))
        low, high = feature.numbers[0], feature.numbers[-1]
    elif isinstance(feature, Continuous) and None not in (feature.lower, feature.upper):
        low, high = float(feature.lower or 0.0), float(feature.upper or 0.0)
    elif isinstance(feature, Continuous):
        middle, reach = (before + after) / 2.0, abs(after - before)
        low, high = middle - reach, middle + reach
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


def _region_legend(axes: Axes, p: RegionPicture, outcome: str, plain: bool) -> None:
    lines = require("matplotlib.lines", "plot", "drawing")

    def mark(shape: str, colour: str, label: str, fill: str | None = None) -> Any:
        return lines.Line2D(
            [], [], linestyle="none", marker=shape, color=colour, label=drawn(label),
            markerfacecolor=fill or colour, markersize=6,
        )  # fmt: skip

    def line(colour: str, dash: str, label: str) -> Any:
        return lines.Line2D([], [], color=colour, linestyle=dash, label=drawn(label))

    now = mark("o", LIGHT.ink, "now, other categories", "none") if p.moved else None
    entries = [now or mark("o", LIGHT.ink, "now"), mark("D", LIGHT.ours, _OURS)]
    if plain:
        entries.append(mark("^", LIGHT.plain, _PLAIN))
    entries.append(mark(".", LIGHT.soft, "robust neighbours"))
    if not p.inside.all():
        entries.append(mark("o", LIGHT.soft, "in other categories", "none"))
    entries += [
        line(LIGHT.soft, "solid", "plausible region"),
        line(LIGHT.plain, "dashed", f"{outcome} today"),
        line(LIGHT.ours, "solid", f"{outcome} within delta"),
    ]
    axes.legend(
        handles=entries,
        loc="upper left",
        bbox_to_anchor=(-0.12, -0.17),
        ncols=2,
        handlelength=1.6,
        columnspacing=1.0,
        borderaxespad=0.2,
    )

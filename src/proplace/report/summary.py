"""The picture of a summary: the share answered, and how often each feature changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import OptionError
from proplace.explain.claims import difference
from proplace.report.plots import percent
from proplace.report.style import LIGHT, drawn, new_figure, style

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from proplace.explain.summary import Summary

_ROW = 0.3  # inches of one feature or group
_MAX_ROWS = 15  # features in one picture, the rest change least often and are counted
_MARKS = (("D", "#0072b2"), ("^", "#d55e00"), ("o", "#009e73"), ("s", "#cc79a7"), ("v", "#56b4e9"))
"""Mark and colour of each group. With more groups, features are drawn for all people together."""

_TOGETHER = "all groups"


def summary_figure(summary: Summary) -> Figure:
    """Draw the share answered of each group above the share of changes of each feature."""
    people = summary.to_frame()
    if not people["refused"].sum():
        raise OptionError(
            "there is nothing to draw: none of these people was refused", name="result"
        )
    shares, changes = _shares(summary, people)
    rows = min(len(shares), _MAX_ROWS) + (len(shares) > _MAX_ROWS)
    heights = [0.75 + _ROW * len(people), 0.75 + _ROW * max(rows, 1)]
    several = len(shares.columns) > 1
    with style(LIGHT):
        figure = new_figure(8.6, sum(heights) + 0.35 * several)
        panels: Any = figure.subplots(
            2, 1, sharex=True, height_ratios=[heights[0], heights[1] + 0.35 * several]
        )
        _draw_answered(panels[0], people)
        _draw_features(panels[1], summary, shares, changes)
    return figure


def _shares(summary: Summary, people: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the share of changes by feature and group, most frequent first, and the changes."""
    frame = summary.features
    if frame.index.nlevels == 1:
        frame = frame.assign(group=people.index[0]).set_index("group", append=True)
        frame = frame.swaplevel()
    groups = [group for group in people.index if people.loc[[group], "answered"].sum()]
    counts = frame["changed"].unstack(0, fill_value=0).reindex(columns=groups)  # noqa: PD010
    order = counts.sum(axis=1).sort_values(ascending=False, kind="stable")
    order = order[order > 0]
    answered = people["answered"].reindex(groups)
    shares = counts.loc[order.index] / answered
    if len(groups) > len(_MARKS):
        shares = (order / answered.sum()).to_frame(_TOGETHER)
    return shares, frame


def _draw_answered(axes: Axes, people: pd.DataFrame) -> None:
    """Draw the share answered of each group with its interval."""
    names = []
    for n, (group, line) in enumerate(people.iterrows()):
        names.append("all people" if len(people) == 1 and group == "all" else drawn(str(group), 34))
        if not line["refused"]:
            _right(axes, n, "nobody was refused")
            continue
        axes.plot([line["low"], line["high"]], [n, n], color=LIGHT.soft, linewidth=2.0, alpha=0.6)
        axes.scatter(line["share"], n, s=52, marker="D", color=LIGHT.ours, zorder=4)
        _right(
            axes, n, f"{line['answered']:.0f} of {line['refused']:.0f} ({percent(line['share'])})"
        )
    _rows(axes, names, len(names))
    axes.set_title(
        _of("share answered, with its 95% interval", people.index.name), loc="left", size=10
    )


def _draw_features(
    axes: Axes, summary: Summary, shares: pd.DataFrame, changes: pd.DataFrame
) -> None:
    """Draw how often each feature changes among the people with a counterfactual."""
    kept = shares.iloc[:_MAX_ROWS]
    for (mark, colour), (group, column) in zip(_MARKS, kept.items(), strict=False):
        axes.scatter(
            column, np.arange(len(column)), s=52, marker=mark, color=colour, zorder=4,
            label=drawn(str(group), 24),
        )  # fmt: skip
    single = len(shares.columns) == 1
    for n, (feature, line) in enumerate(kept.iterrows()):
        axes.plot([0.0, line.max()], [n, n], color=LIGHT.soft, linewidth=2.0, alpha=0.35)
        _right(axes, n, _amount(summary, str(feature), changes) if single else _range(line))
    known = {name: summary.feature(str(name)) for name in kept.index}
    names = [drawn(f.title if f else str(name), 34) for name, f in known.items()]
    rest = len(shares) - len(kept)
    if rest:
        names.append(f"and {rest} more")
    if not names:
        axes.annotate("no feature changes", (0.0, 0.0), va="center", color=LIGHT.soft)
    _rows(axes, names, max(len(names), 1))
    whom = f", {_TOGETHER}" if _TOGETHER in kept else ""
    title = f"share of the answered people whose counterfactual changes it{whom}"
    axes.set_title(title, loc="left", size=10)
    axes.set_xticks([0.0, 0.25, 0.5, 0.75, 1.0], ["0%", "25%", "50%", "75%", "100%"])
    if not single and names:
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(0.0, -0.9 / len(names)),
            ncols=3,
            borderaxespad=0.0,
        )


def _amount(summary: Summary, name: str, changes: pd.DataFrame) -> str:
    """Write by how much a feature changes, if there is one group."""
    lines = changes.xs(name, level=1)
    if len(lines) > 1:
        return ""
    change, most = lines["median_change"].iloc[0], lines["most_often"].iloc[0]
    if np.isnan(change):
        return drawn(f"mostly {most}")
    feature = summary.feature(name)
    size = difference(feature, 0.0, change) if feature else f"{change:+.4g}"
    return drawn(f"median: {size}")


def _range(line: pd.Series[float]) -> str:
    low, high = percent(line.min()), percent(line.max())
    return low if low == high else f"{low} to {high}"


def _of(text: str, name: object) -> str:
    return text if name is None else f"{text}, by {drawn(str(name), 34)}"


def _rows(axes: Axes, names: list[str], rows: int) -> None:
    """Give each row of a panel its name."""
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0, labelcolor=LIGHT.ink)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_xlim(-0.015, 1.015)
    axes.spines["left"].set_visible(False)


def _right(axes: Axes, row: int, text: str) -> None:
    """Write at the right end of a row."""
    axes.annotate(
        text, (1.0, row), xycoords=axes.get_yaxis_transform(), xytext=(8, 0),
        textcoords="offset points", va="center", color=LIGHT.soft, annotation_clip=False,
    )  # fmt: skip

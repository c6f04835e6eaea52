"""Tables and pictures of a run: means with intervals beside the figures of the paper.

All files but those of seconds depend on the archive alone.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from proplace.core.errors import require
from proplace.core.files import atomic_write
from proplace.experiment.run import KEYS, MEASURES
from proplace.experiment.settings import ACCURACY, PUBLISHED, PUBLISHED_SECONDS, SETTINGS
from proplace.experiment.statistics import Interval, difference, interval, matrix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from proplace.experiment.run import Results
    from proplace.experiment.settings import Settings

BASE = "PROPLACE"
"""The method that all others are compared with."""
_CURVE = ["data", "network", "seed", "delta", "validity", "robust", "used"]
LEAKS = {
    "heloc": (
        "**The published file leaks the label of 4,229 of its 9,871 rows.** In ten columns, missing "
        "cells hold the mean of the row's own class. NetFractionInstallBurden is 66.5163 in 1,814 "
        "rows, all of class 1, and 70.2104 in 1,605 rows, all of class 0. Use this table only to "
        "compare with the paper. For results on credit data, use heloc-repaired."
    )
}
"""A warning for each data set with a leaked label, shown before its table."""
_PICTURES = "the pictures of the experiment"
_COLOURS = {
    "PROPLACE": "#d1495b",
    "PROPLACE-Algorithm-1": "#4a1019",
    "PROPLACE-calibrated": "#e07a5f",
    "PROPLACE-networks": "#f08080",
    "PROPLACE-learned": "#9d0208",
    "PROPLACE-sparse": "#f4a261",
    "PROPLACE-typical": "#c77dff",
    "RNCE": "#edae49",
    "MILP-R": "#00798c",
    "PROTO-R": "#30638e",
    "ROAR": "#8d5a97",
    "RobX": "#4f772d",
    "RBR": "#6c757d",
    "WCE": "#b08968",
}
# Both searches end at the same point, so one has a small mark on the large mark of the other.
_SIZE_AND_ORDER = {"PROPLACE": (9, 3), "PROPLACE-Algorithm-1": (4, 4)}


def summary(people: pd.DataFrame) -> pd.DataFrame:
    """Return mean, lower and upper end of every measure, one row per data set, network and method."""
    rows = []
    for data, network, part in groups(people):
        for method in map(str, part["method"].drop_duplicates()):
            row: dict[str, Any] = {"data": data, "network": network, "method": method}
            row["people"] = int((part["method"] == method).sum())
            for measure in [*MEASURES, *_kinds(part)]:
                found = interval(matrix(part, method, measure))
                row |= {
                    measure: found.mean,
                    f"{measure} low": found.low,
                    f"{measure} high": found.high,
                }
            rows.append(row)
    return pd.DataFrame(rows)


def groups(table: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """Return data set, network and rows of each table, in the order of the run."""
    return [
        (str(key[0]), str(key[1]), part)
        for key, part in table.groupby(["data", "network"], sort=False)
        if isinstance(key, tuple)
    ]


def seeds(people: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of every measure, one row per data set, network, seed and method."""
    columns = [*MEASURES, *_kinds(people)]
    return people.groupby(list(KEYS), sort=False)[columns].mean().round(9).reset_index()


def _kinds(people: pd.DataFrame) -> list[str]:
    """Columns of the validity by kind of retraining."""
    return [column for column in map(str, people) if column.startswith("vr ")]


# -- text ------------------------------------------------------------------------------------------


def percent(value: float) -> str:
    """Return a share in percent, rounded down to 99.9 below 1."""
    if not math.isfinite(value):
        return "-"
    return "100" if value == 1.0 else f"{min(99.9, 100.0 * value):.1f}"


def number(value: float, digits: int) -> str:
    """Return a number with fixed digits."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def seconds(value: float) -> str:
    """Return seconds with two digits."""
    return "-" if not math.isfinite(value) else f"{value:.2g}"


def paper(data: str, method: str) -> str:
    """Return the figures of the paper, or a dash."""
    # Both searches solve the problem of the paper.
    row = PUBLISHED.get(method.removesuffix("-Algorithm-1"), {}).get(data)
    if row is None:
        return "-"
    vr, vdelta, l1, lof = row
    return f"{vr} / {vdelta} / {l1:.3f} / {lof:.2f}"


HEAD = (
    "method", "people", "vr %", "on all %", "vdelta %", "l1", "lof", "lof ≤ 1.5 %", "changed",
    "answered %", "paper",
)  # fmt: skip


def rows(table: pd.DataFrame, data: str, network: str) -> Iterator[tuple[str, ...]]:
    """Yield the lines of one table of :func:`summary`, in the order of :data:`HEAD`."""
    for row in table[(table["data"] == data) & (table["network"] == network)].to_dict("records"):

        def ranged(measure: str, digits: int, row: dict[Any, Any] = row) -> str:
            low, high = (number(row[f"{measure} {end}"], digits) for end in ("low", "high"))
            return f"{number(row[measure], digits)} [{low}, {high}]"

        low, high = (percent(row[f"vr {end}"]) for end in ("low", "high"))
        known = SETTINGS.get(_published(data))
        published = known is not None and network == _network(known)
        yield (
            str(row["method"]),
            str(row["people"]),
            f"{percent(row['vr'])} [{low}, {high}]",
            percent(row["all"]),
            percent(row["vdelta"]),
            ranged("l1", 3),
            ranged("lof", 2),
            percent(row["plausible"]),
            number(row["changed"], 1),
            percent(row["found"]),
            paper(data, str(row["method"])) if published else "-",
        )


def setting(cells: pd.DataFrame, data: str, network: str) -> str:
    """Return one sentence on delta, networks and people of a table."""
    part = cells[(cells["data"] == data) & (cells["network"] == network)]
    # Slow methods explain fewer people.
    part = part.sort_values(["seed", "people"], ascending=[True, False]).drop_duplicates("seed")
    name = _published(data)
    version = " (file as published, with its label leak)" if data in LEAKS else ""
    version = " (repaired for the label leak)" if data != name else version
    counts = part.groupby("delta").size()
    used = ", ".join(
        f"{delta:g}" + ("" if len(counts) == 1 else f" for {count} seed{'s'[: count > 1]}")
        for delta, count in counts.items()
    )
    accuracy = f"{part['accuracy'].mean():.1%}"
    if name in SETTINGS:
        used += f", published {SETTINGS[name].delta:g}; k {SETTINGS[name].k}"
        accuracy += f" (paper {ACCURACY[name]:.0%})"
    filled = int((part["people"] - part["unseen"]).sum())
    known = f"; {filled} of them are training rows" if filled else ""
    return (
        f"{data}{version}, networks {network}: delta {used}; accuracy {accuracy}; "
        f"{int(part['people'].sum())} people over {len(part)} seed{'s'[: len(part) > 1]}{known}."
    )


def _published(data: str) -> str:
    return data.removesuffix("-repaired")


def markdown(results: Results) -> str:
    """Return all tables in Markdown."""
    table, lines = summary(results.people), []
    for data, network, people in groups(results.people):
        lines += [f"### {data.upper()}, {network}", "", setting(results.cells, data, network), ""]
        if data in LEAKS:
            lines += [LEAKS[data], ""]
        lines += _table(HEAD, rows(table, data, network))
        lines += ["Validity by kind of retraining, in %:", ""]
        lines += _table(*_by_kind(table, people, data, network))
        compared = list(_compared(people))
        if compared:
            lines += [f"Each method minus {BASE}, paired by person:", ""]
            lines += _table(("method", "vr", "l1", "lof", "l1 lower / same / higher"), compared)
    for row in results.cells[results.cells["error"] != ""].to_dict("records"):
        where = f"{row['data']}, {row['network']}, seed {row['seed']}"
        lines.append(f"FAILED: {where}, {row['method']}: {row['error']}")
    return "\n".join(lines).rstrip() + "\n"


def overview(table: pd.DataFrame) -> str:
    """Return a table of methods and data sets per size, a cell with vr %, vdelta %, l1 and lof."""
    lines = []
    sizes = [_size(data, network) for data, network in table[["data", "network"]].to_numpy()]
    for size in sorted(set(sizes)):
        here = table[[one == size for one in sizes]]
        lines += [f"Networks {size}: vr %, vdelta %, l1, lof", ""]
        columns = [(data, network) for data, network, _ in groups(here)]
        body = []
        for method in here["method"].drop_duplicates():
            found = {
                (row["data"], row["network"]): _cell(row)
                for row in here[here["method"] == method].to_dict("records")
            }
            body.append((str(method), *(found.get(column, "-") for column in columns)))
        heads = (f"{data.upper()} {network}" for data, network in columns)
        lines += _table(("method", *heads), body)
    return "\n".join(lines)


def _size(data: str, network: str) -> str:
    known = SETTINGS.get(_published(data))
    return "as in the paper" if known and network == _network(known) else f"of {network}"


def _network(known: Settings) -> str:
    return "x".join(map(str, known.widths))


def _cell(row: dict[Any, Any]) -> str:
    l1, lof = number(row["l1"], 3).removeprefix("0"), number(row["lof"], 2)
    return f"{percent(row['vr'])}, {percent(row['vdelta'])}, {l1}, {lof}"


def _table(head: tuple[str, ...], body: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in (head, *body)]
    return [lines[0], "|" + "---|" * len(head), *lines[1:], ""]


def _by_kind(
    table: pd.DataFrame, people: pd.DataFrame, data: str, network: str
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    kinds = [kind for kind in _kinds(people) if people[kind].notna().any()]
    part = table[(table["data"] == data) & (table["network"] == network)]
    body = [
        (str(row["method"]), *(percent(row[kind]) for kind in kinds))
        for row in part.to_dict("records")
    ]
    return ("method", *(kind.removeprefix("vr ") for kind in kinds)), body


def _compared(people: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    methods = [str(name) for name in people["method"].drop_duplicates()]
    if BASE not in methods:
        return
    for method in methods:
        if method == BASE:
            continue
        found = {
            measure: difference(matrix(people, method, measure), matrix(people, BASE, measure))
            for measure in ("vr", "l1", "lof")
        }
        near = found["l1"]
        yield (
            method,
            _signed(found["vr"].change, 100.0, 1),
            _signed(near.change, 1.0, 3),
            _signed(found["lof"].change, 1.0, 2),
            f"{near.wins} / {near.ties} / {near.losses}",
        )


def _signed(change: Interval, factor: float, digits: int) -> str:
    if not math.isfinite(change.mean):
        return "-"
    mean, low, high = (
        f"{factor * value + 0.0:+.{digits}f}" for value in (change.mean, change.low, change.high)
    )
    return f"{mean} [{low}, {high}]"


def times(cells: pd.DataFrame) -> str:
    """Return seconds per counterfactual over data sets and seeds, beside the published ones."""
    good = cells[cells["error"] == ""]
    body = [
        (
            str(name),
            seconds(part.median()),
            seconds(part.min()),
            seconds(part.max()),
            PUBLISHED_SECONDS.get(str(name).removesuffix("-Algorithm-1"), "-"),
        )
        for name, part in good.groupby("method", sort=False)["seconds"]
    ]
    return "\n".join(_table(("method", "median", "least", "most", "published"), body))


def write(results: Results, out: Path) -> list[Path]:
    """Write tables and pictures of a run into a folder and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    table = summary(results.people)
    plain = results.cells.drop(columns="seconds")
    files = {
        "results.csv": _csv(table),
        "seeds.csv": _csv(plain.merge(seeds(results.people), how="left", on=list(KEYS))),
        "curves.csv": _csv(results.curves[_CURVE].round(9)),
        "results.md": markdown(results).encode(),
        "overview.md": overview(table).encode(),
        "l1-lof.png": png(scatter(table, "lof", "lof (more plausible is down)")),
        "l1-vr.png": png(scatter(table, "vr", "valid after retraining")),
        "vr-delta.png": png(vr_delta(results.curves.round(9))),
        "seconds.csv": _csv(results.cells[[*KEYS, "seconds"]]),
        "seconds.md": times(results.cells).encode(),
    }
    for name, content in files.items():
        with atomic_write(out / name) as file:
            file.write(content)
    return [out / name for name in files]


def _csv(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False, lineterminator="\n").encode()


# -- pictures --------------------------------------------------------------------------------------


def check() -> None:
    """Raise at once, not after a long run, if pictures cannot be drawn."""
    require("matplotlib", "plot", _PICTURES)


def png(figure: Any) -> bytes:
    """Return a figure as a PNG file and close it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    require("matplotlib.pyplot", "plot", _PICTURES).close(figure)
    return buffer.getvalue()


def _legend(figure: Any, handles: list[Any], label: str) -> None:
    """Name the vertical axis of each row of panels, and add a legend below them."""
    for panel in figure.axes:
        if panel.get_subplotspec().is_first_col():
            panel.set_ylabel(label)
    longest = max(len(handle.get_label()) for handle in handles)
    columns = min(len(handles), max(1, int(figure.get_figwidth() / (0.07 * longest + 0.5))))
    height = 0.2 + 0.21 * -(-len(handles) // columns)
    figure.set_figheight(figure.get_figheight() + height)
    figure.legend(
        handles=handles, loc="lower center", ncols=columns, frameon=False, fontsize="small"
    )
    figure.tight_layout(rect=(0, height / figure.get_figheight(), 1, 1))


def _panels(table: pd.DataFrame) -> tuple[Any, list[tuple[pd.DataFrame, Any]]]:
    """Return a figure with one row of panels per network and one column per data set."""
    pyplot = require("matplotlib.pyplot", "plot", _PICTURES)
    parts = groups(table)
    names = list(dict.fromkeys(data for data, _, _ in parts))
    sizes = list(dict.fromkeys(network for _, network, _ in parts))
    figure, axes = pyplot.subplots(
        len(sizes),
        len(names),
        figsize=(3.2 * len(names) + 0.4, 3.0 * len(sizes)),
        squeeze=False,
    )
    for panel in axes.flat:
        panel.set_visible(False)
    panels = []
    for data, network, part in parts:
        panel = axes[sizes.index(network), names.index(data)]
        panel.set_visible(True)
        leaks = " (leaks its label)" if data in LEAKS else ""
        panel.set_title(f"{data.upper()} {network}{leaks}", fontsize="medium")
        panel.spines[["top", "right"]].set_visible(False)
        panels.append((part, panel))
    return figure, panels


def scatter(table: pd.DataFrame, measure: str, label: str) -> Any:
    """Draw a measure against l1 with intervals. Filled marks are proved for every person."""
    figure, panels = _panels(table)
    shown: dict[str, Any] = {}
    for part, panel in panels:
        for row in part.to_dict("records"):
            method = str(row["method"])
            colour = _COLOURS.get(method, "black")
            size, order = _SIZE_AND_ORDER.get(method, (6, 2))
            shown[method] = colour
            panel.errorbar(
                row["l1"],
                row[measure],
                xerr=_whiskers(row, "l1"),
                yerr=_whiskers(row, measure),
                fmt="o",
                markersize=size,
                color=colour,
                markerfacecolor=colour if row["vdelta"] == 1.0 else "white",
                elinewidth=0.8,
                zorder=order,
            )
        panel.set_xlabel("l1 (nearer is left)")
        panel.set_xlim(left=0.0)
    first = panels[0][1]
    legend = [first.plot([], [], "o", color=c, label=name)[0] for name, c in shown.items()]
    _legend(figure, legend, label)
    return figure


def _whiskers(row: dict[Any, Any], measure: str) -> Any:
    mean, low, high = row[measure], row[f"{measure} low"], row[f"{measure} high"]
    if not all(map(math.isfinite, (mean, low, high))):
        return None
    return np.array([[max(0.0, mean - low)], [max(0.0, high - mean)]])


def vr_delta(curves: pd.DataFrame) -> Any:
    """Draw validity on retrained networks and the share of robust rows against delta, by seed."""
    figure, panels = _panels(curves)
    for part, panel in panels:
        for _, curve in part.groupby("seed"):
            panel.plot(curve["delta"], curve["validity"], color="#d1495b", linewidth=1.0)
            panel.plot(curve["delta"], curve["robust"], color="#6c757d", linewidth=0.8, ls="--")
            panel.axvline(curve["used"].iloc[0], color="black", linewidth=0.6)
        panel.set_xlim(left=0.0)
        panel.set_ylim(-0.02, 1.03)
        panel.set_xlabel("delta")
    first = panels[0][1]
    legend = [
        first.plot(
            [], [], color="#d1495b", label="PROPLACE's counterfactuals valid after retraining"
        ),
        first.plot([], [], color="#6c757d", ls="--", label="training rows robust"),
        first.plot([], [], color="black", linewidth=0.6, label="delta in use"),
    ]
    _legend(figure, [lines[0] for lines in legend], "share")
    return figure

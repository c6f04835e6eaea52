"""Results as tables and pictures: mean and spread over training seeds, beside the paper's figures."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

from proplace.core.errors import require
from proplace.experiment.protocol import ACCURACY, PUBLISHED, PUBLISHED_SECONDS
from proplace.experiment.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

METRICS = ("vr", "vdelta", "l1", "lof")
LEAKS = {
    "heloc": (
        "**The published file leaks the label of 4,229 of its 9,871 rows.** In ten columns, missing "
        "cells hold the mean of the row's own class. NetFractionInstallBurden is 66.5163 in 1,814 "
        "rows, all of class 1, and 70.2104 in 1,605 rows, all of class 0. Use this table only to "
        "compare with the paper. For results on credit data, use heloc-repaired."
    )
}
"""A warning for each data set that gives its label away, shown with its table."""
_WHAT = "the pictures of the experiment"
_COLOURS = {
    "PROPLACE": "#d1495b",
    "PROPLACE-Algorithm-1": "#4a1019",
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
_SHOWN = {"vr": (100.0, 1), "vdelta": (100.0, 1), "l1": (1.0, 3), "lof": (1.0, 2)}


def summary(results: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation over seeds, one row per data set and method."""
    good = results[results["error"] == ""]
    columns = ["found", "valid", *METRICS, "seconds"]
    groups = good.groupby(["data", "method"], sort=False)[columns]
    means, spreads = groups.mean(), groups.std()
    table = means.join(spreads.add_suffix("_sd"))
    table["seeds"] = groups.size()
    return table.reset_index()


def shown(mean: float, spread: float, metric: str) -> str:
    """A mean with its spread, as in ``99.7 ± 0.3``; no spread of a single seed."""
    factor, digits = _SHOWN[metric]
    if not math.isfinite(mean):
        return "-"
    text = f"{factor * mean:.{digits}f}"
    return text if not math.isfinite(spread) else f"{text} ± {factor * spread:.{digits}f}"


def seconds(value: float) -> str:
    """Seconds with two digits."""
    return "-" if not math.isfinite(value) else f"{value:.2g}"


def paper(data: str, method: str) -> str:
    """The paper's figures of a cell, or a dash."""
    row = PUBLISHED.get(method, {}).get(data.removesuffix("-repaired"))
    if row is None or data.endswith("-repaired"):
        return "-"
    vr, vdelta, l1, lof = row
    return f"{vr} / {vdelta} / {l1:.3f} / {lof:.2f}"


HEAD = ("method", "vr %", "vdelta %", "l1", "lof", "answered %", "s per CE", "paper")


def rows(results: pd.DataFrame, data: str) -> Iterator[tuple[str, ...]]:
    """The table of one data set, a row per method, in the order of :data:`HEAD`."""
    table = summary(results)
    for row in table[table["data"] == data].to_dict("records"):
        method = str(row["method"])
        yield (
            method,
            *(shown(row[name], row[f"{name}_sd"], name) for name in METRICS),
            f"{100 * row['found']:.0f}",
            seconds(row["seconds"]),
            paper(data, method),
        )


def setting(results: pd.DataFrame, data: str) -> str:
    """One sentence on what the figures of a data set rest on."""
    part = results[results["data"] == data].drop_duplicates("seed")
    name = data.removesuffix("-repaired")
    version = "" if name != "heloc" else " (file as published, with its label leak)"
    if data.endswith("-repaired"):
        version = " (repaired for the label leak)"
    deltas = []
    for row in part.to_dict("records"):
        mark = " (calibrated)" if row["calibrated"] else ""
        deltas.append(f"{row['delta']:g}{mark}")
    same = len(set(deltas)) == 1
    used = deltas[0] if same else ", ".join(deltas) + " for the seeds in turn"
    filled = int((part["inputs"] - part["fresh"]).sum())
    short = f"; {filled} of them are training rows" if filled else ""
    return (
        f"{data}{version}: delta {used}, published {SETTINGS[name].delta:g}; k {SETTINGS[name].k}; "
        f"accuracy {part['accuracy'].mean():.1%} (paper {ACCURACY[name]:.0%}); "
        f"{int(part['inputs'].sum())} inputs over {len(part)} seed{'s'[: len(part) > 1]}{short}."
    )


def markdown(results: pd.DataFrame) -> str:
    """All tables in Markdown."""
    lines: list[str] = []
    for data in results["data"].drop_duplicates():
        lines += [f"### {data.upper()}", "", setting(results, data), ""]
        if data in LEAKS:
            lines += [LEAKS[data], ""]
        lines += ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
        lines += ["| " + " | ".join(row) + " |" for row in rows(results, data)]
        lines.append("")
    failed = results[results["error"] != ""]
    for row in failed.to_dict("records"):
        lines.append(f"FAILED: {row['data']}, seed {row['seed']}, {row['method']}: {row['error']}")
    return "\n".join(lines).rstrip() + "\n"


def times(results: pd.DataFrame) -> str:
    """Median seconds per counterfactual over data sets and seeds, beside the published ones."""
    good = results[results["error"] == ""]
    lines = ["| method | median | least | most | published |", "|---|---|---|---|---|"]
    for name, part in good.groupby("method", sort=False)["seconds"]:
        lines.append(
            f"| {name} | {seconds(part.median())} | {seconds(part.min())} | {seconds(part.max())} | "
            f"{PUBLISHED_SECONDS.get(str(name), '-')} |"
        )
    return "\n".join(lines) + "\n"


# -- pictures ----------------------------------------------------------------------------------


def check() -> None:
    """Raise at once, not after a long run, if pictures cannot be drawn."""
    require("matplotlib", "plot", _WHAT)


def png(figure: Any) -> bytes:
    """Return a figure as a PNG file and close it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    require("matplotlib.pyplot", "plot", _WHAT).close(figure)
    return buffer.getvalue()


def _legend(figure: Any, handles: list[Any], columns: int) -> None:
    """Put a legend below the panels, in as many rows as it takes."""
    lines = -(-len(handles) // columns)
    figure.legend(
        handles=handles, loc="lower center", ncols=columns, frameon=False, fontsize="small"
    )
    figure.tight_layout(rect=(0, 0.02 + 0.06 * lines, 1, 1))


def _panels(results: pd.DataFrame) -> tuple[Any, Any, list[str]]:
    pyplot = require("matplotlib.pyplot", "plot", _WHAT)
    names = [str(name) for name in results["data"].drop_duplicates()]
    figure, axes = pyplot.subplots(
        1, len(names), figsize=(3.2 * len(names) + 0.4, 3.5), squeeze=False
    )
    for name, panel in zip(names, axes[0], strict=True):
        leaks = " (leaks its label)" if name in LEAKS else ""
        panel.set_title(f"{name.upper()}{leaks}", fontsize="medium")
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes[0], names


def l1_lof(results: pd.DataFrame) -> Any:
    """Mean lof against mean l1 per method; filled where every answer is robust. Down left is best."""
    figure, panels, names = _panels(results)
    table = summary(results)
    handles: dict[str, Any] = {}
    for name, panel in zip(names, panels, strict=True):
        for row in table[table["data"] == name].to_dict("records"):
            method = str(row["method"])
            colour = _COLOURS.get(method, "black")
            robust = row["vdelta"] >= 1.0
            size, order = _SIZE_AND_ORDER.get(method, (7, 2))
            handles[method] = panel.errorbar(
                row["l1"],
                row["lof"],
                xerr=row["l1_sd"],
                yerr=row["lof_sd"],
                fmt="o",
                markersize=size,
                color=colour,
                markerfacecolor=colour if robust else "white",
                elinewidth=0.8,
                zorder=order,
            )
        panel.set_xlabel("l1 (nearer is left)")
        panel.set_xlim(left=0.0)
    panels[0].set_ylabel("lof (more plausible is down)")
    legend = [
        figure.axes[0].plot([], [], "o", color=_COLOURS.get(m, "black"), label=m)[0]
        for m in handles
    ]
    _legend(figure, legend, columns=min(9, 3 * len(panels)))
    return figure


def vr_delta(curves: pd.DataFrame) -> Any:
    """Validity on retrained networks, and the share of robust rows, against delta; a line per seed."""
    figure, panels, names = _panels(curves)
    for name, panel in zip(names, panels, strict=True):
        for _, curve in curves[curves["data"] == name].groupby("seed"):
            panel.plot(curve["delta"], curve["validity"], color="#d1495b", linewidth=1.3)
            panel.plot(curve["delta"], curve["robust"], color="#6c757d", linewidth=1.0, ls="--")
            panel.axvline(curve["used"].iloc[0], color="black", linewidth=0.6)
        panel.set_xlim(left=0.0)
        panel.set_ylim(-0.02, 1.03)
        panel.set_xlabel("delta")
    panels[0].set_ylabel("share")
    legend = [
        panels[0].plot(
            [], [], color="#d1495b", label="PROPLACE's answers valid on retrained networks"
        ),
        panels[0].plot([], [], color="#6c757d", ls="--", label="training rows robust"),
        panels[0].plot([], [], color="black", linewidth=0.6, label="delta used"),
    ]
    _legend(figure, [lines[0] for lines in legend], columns=min(3, len(panels)))
    return figure

"""The pictures of the experiment: plausibility against distance, validity against delta."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from proplace.core.errors import require
from proplace.experiment.table import LEAKS, summary

if TYPE_CHECKING:
    import pandas as pd

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

"""What a run writes: CSV, Markdown, pictures, and one HTML page that holds them all."""

from __future__ import annotations

import base64
import html
import io
from typing import TYPE_CHECKING, Any

from proplace.apps.experiment import plots, table
from proplace.core.files import atomic_write
from proplace.core.optional import require

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1120px; margin: 2em auto; padding: 0 1em;
       color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3em .7em; text-align: right; border-bottom: 1px solid #e3e3e3; }
td { white-space: nowrap; } div.scroll { overflow-x: auto; }
th:first-child, td:first-child { text-align: left; } td:last-child, th:last-child { color: #777; }
tr.ours { background: #fdf1f2; font-weight: 600; } p.setting { color: #555; }
img { max-width: 100%; } .failed { color: #b00020; }
"""

_LEGEND = (
    "vr: share of answers that are valid on networks retrained from scratch. vdelta: share proved "
    "valid for every network within delta. l1: mean absolute difference of encoded columns. lof: "
    "local outlier factor among rows of the desired class (1: inlier). s per CE: processor seconds "
    "per counterfactual, one thread, all preparation included. An input without an answer counts as "
    "not valid. Mean ± standard deviation over training seeds; last column: the paper's vr / vdelta / "
    "l1 / lof."
)


def check_plots() -> None:
    """Say at once, not after a long run, that pictures cannot be drawn."""
    require("matplotlib", "plot", "the pictures of the benchmark")


def write(results: pd.DataFrame, curves: pd.DataFrame, out: Path) -> list[Path]:
    """Write everything into a folder; return the paths."""
    out.mkdir(parents=True, exist_ok=True)
    pictures = {
        "l1-lof.png": _png(plots.l1_lof(results[results["error"] == ""])),
        "vr-delta.png": _png(plots.vr_delta(curves)),
    }
    files = {
        "results.csv": results.to_csv(index=False).encode(),
        "curves.csv": curves.to_csv(index=False).encode(),
        "results.md": (table.markdown(results) + "\n" + table.times(results)).encode(),
        "index.html": page(results, pictures).encode(),
        **pictures,
    }
    for name, content in files.items():
        with atomic_write(out / name) as file:
            file.write(content)
    return [out / name for name in files]


def page(results: pd.DataFrame, pictures: dict[str, bytes]) -> str:
    """One page that needs nothing but itself."""
    parts = [f"<p>{html.escape(_LEGEND)}</p>"]
    for data in results["data"].drop_duplicates():
        parts += [
            f"<h2>{html.escape(data.upper())}</h2>",
            f'<p class="setting">{html.escape(table.setting(results, data))}</p>',
            _table(table.HEAD, list(table.rows(results, data))),
        ]
    for row in results[results["error"] != ""].to_dict("records"):
        words = f"{row['data']}, seed {row['seed']}, {row['method']}: {row['error']}"
        parts.append(f'<p class="failed">Failed: {html.escape(words)}</p>')
    captions = {
        "l1-lof.png": "Plausibility against distance. Filled: every answer is proved robust.",
        "vr-delta.png": (
            "Validity against delta, on networks and rows that were set aside for this; one line per "
            "training seed."
        ),
    }
    for name, words in captions.items():
        data = base64.b64encode(pictures[name]).decode()
        parts += [
            f"<h2>{html.escape(words)}</h2>",
            f'<img alt="{html.escape(words)}" src="data:image/png;base64,{data}">',
        ]
    title = "Robust and plausible counterfactuals: the comparison"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    lines = [f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>']
    for row in rows:
        ours = ' class="ours"' if row[0] == "PROPLACE" else ""
        lines.append(f"<tr{ours}>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    require("matplotlib.pyplot", "plot", "the pictures of the benchmark").close(figure)
    return buffer.getvalue()

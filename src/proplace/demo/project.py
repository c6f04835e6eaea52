"""The model and the table of the demonstration, for the workbench."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proplace.demo import WORDING, fit, load_loans, loan_schema
from proplace.loaders.model import Model
from proplace.project import OpenedProject

if TYPE_CHECKING:
    from pathlib import Path

DELTA = 0.01
"""Fixed, so that the workbench starts at once. ``proplace demo`` calibrates it."""


def demo_project(ledger: Path) -> OpenedProject:
    """Train the model of the demonstration. The id of an applicant is the number of the row."""
    schema, loans = loan_schema(), load_loans()
    frame = loans.frame[list(schema.by_name)]
    model = Model.of(fit(schema.encode(frame), loans.approved)).with_schema(schema)
    people = frame.set_axis([str(row) for row in frame.index])
    return OpenedProject(model, frame, DELTA, 1, WORDING, people, ledger=str(ledger))

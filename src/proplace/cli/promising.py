"""`--ledger` of `proplace explain`: the answers become promises."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proplace.cli.console import tell

if TYPE_CHECKING:
    from proplace.explain.results import Explanations
    from proplace.explain.words import Wording
    from proplace.ledger.ledger import Ledger
    from proplace.schema.values import Label


class Existing(StrEnum):
    """What to do where a person has another open promise."""

    refuse = "refuse"
    add = "add"
    renew = "renew"


Place = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        help="Also promise the answers: a ledger, made if it is not there (promises.db, or "
        "postgresql://...). Certificates are kept, as with --certificates.",
    ),
]
Column = Annotated[
    str | None,
    typer.Option(
        "--ids", help="Column with the id of each person, for --ledger; default: the one --id."
    ),
]
Expires = Annotated[
    str | None, typer.Option(help="Last day of the promises, such as 2027-03-31; default: no end.")
]
AnExisting = Annotated[
    Existing,
    typer.Option(
        "--existing",
        help="Where a person has another open promise: refuse, add (both hold), or renew (the new "
        "one takes its place).",
    ),
]


Subject = Annotated[
    str | None, typer.Option(help="Subject of the decision, in promises and letters: 'the loan'.")
]
Outcome = Annotated[
    str | None,
    typer.Option(help="Name of the target class, in promises and letters: 'approved'."),
]


@dataclass(frozen=True)
class Promising:
    """Where answers are promised, to whom and for how long.

    Attributes
    ----------
    place
        The ledger.
    column
        The id column.
    expires, existing
        As :meth:`proplace.Ledger.issue` takes them.
    """

    place: str
    column: str
    expires: str | None
    existing: Existing

    @classmethod
    def of(
        cls,
        place: str | None,
        column: str | None,
        expires: str | None,
        existing: Existing,
        ids: list[str],
    ) -> Promising | None:
        """Read the options, and say what is wrong with them before any work."""
        from proplace.core.errors import OptionError  # noqa: PLC0415  (quick help)

        if place is None:
            given = {"--ids": column, "--expires": expires}
            for name, value in given.items():
                if value is not None:
                    raise OptionError(f"{name} is for promises: give --ledger, too", name=name)
            if existing is not Existing.refuse:
                raise OptionError(
                    "--existing is for promises: give --ledger, too", name="--existing"
                )
            return None
        if column is None and len(ids) != 1:
            raise OptionError(
                "a promise is made to somebody: --ledger needs --ids COLUMN, which says who each person "
                "is",
                name="--ids",
            )
        found = cls(place, ids[0] if column is None else column, expires, existing)
        check_day(expires)
        if "://" in place or Path(place).exists():
            found.open().close()
        elif not Path(place).parent.is_dir():
            raise OptionError(
                f"--ledger {place}: there is no folder {Path(place).parent}; make it first",
                name="--ledger",
                value=place,
            )
        else:
            from proplace.core.errors import require  # noqa: PLC0415

            require("sqlalchemy", "ledger", "a ledger of promises")
        return found

    def open(self) -> Ledger:
        """Open the ledger."""
        from proplace.ledger.ledger import Ledger  # noqa: PLC0415

        if is_new(self.place):
            tell(f"note: {self.place} is a new ledger")
        return Ledger(self.place)

    def issue(self, answers: Explanations, wording: Wording | None) -> None:
        """Promise the answers of one person."""
        with self.open() as ledger:
            issued = ledger.issue(
                answers,
                self.column,
                expires=self.expires,
                existing=self.existing.value,
                wording=wording,
            )
            numbers = f" ({', '.join(map(str, issued.ids))})" if issued.ids else ""
            tell(f"{ledger.name}: {issued}{numbers}")

    def issue_folder(self, folder: Path, wording: Wording | None) -> None:
        """Promise the answers of a folder of results."""
        with self.open() as ledger:
            issued = ledger.issue_folder(
                folder,
                self.column,
                expires=self.expires,
                existing=self.existing.value,
                wording=wording,
            )
            tell(f"{ledger.name}: {issued}")


def wording_of(target: Label, subject: str | None, outcome: str | None) -> Wording | None:
    """Return the words of a promise for a class, by its label; None for the defaults."""
    from proplace.explain.words import Wording  # noqa: PLC0415

    if subject is None and outcome is None:
        return None
    usual = Wording()
    words = usual.outcomes if outcome is None else {target: outcome}
    return Wording(usual.subject if subject is None else subject, words)


def check_wording(promises: Promising | None, subject: str | None, outcome: str | None) -> None:
    """Reject words for promises if nothing is promised."""
    from proplace.core.errors import OptionError  # noqa: PLC0415

    for name, value in {"--subject": subject, "--outcome": outcome}.items():
        if promises is None and value is not None:
            raise OptionError(f"{name} needs --ledger: it is for promises and letters.", name=name)


def is_new(place: str) -> bool:
    """Whether a ledger would be made; what a URL leads to is not known."""
    return "://" not in place and not Path(place).exists()


def check_day(day: str | None) -> None:
    """Say whether a last day is one, and not over."""
    from proplace.core.errors import OptionError  # noqa: PLC0415
    from proplace.ledger.tables import now  # noqa: PLC0415

    if day is None:
        return
    import datetime  # noqa: PLC0415

    try:
        date = datetime.date.fromisoformat(day)
    except ValueError:
        raise OptionError(
            f"--expires {day!r} is no day; give one such as 2027-03-31", name="--expires", value=day
        ) from None
    if f"{date}" < now()[:10]:
        raise OptionError(f"--expires {day} is over; give a later day", name="--expires", value=day)

"""`--ledger` of `proplace explain`: the answers become promises."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proplace.cli.console import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from proplace.core.network import Array
    from proplace.explain.results import Explanations
    from proplace.explain.words import Wording
    from proplace.ledger.ledger import Ledger


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


@contextmanager
def references(
    promises: Promising | None,
) -> Iterator[Callable[[Explanations], str | None] | None]:
    """What letters call the promises of their people; None where nothing is promised."""
    if promises is None:
        yield None
        return
    with promises.open() as ledger:

        def reference(answers: Explanations) -> str | None:
            person = answers[0].ids[promises.column]
            known = map(ledger.promise, ledger.promises(person, "open").index)
            numbers = [
                str(one.id)
                for one in known
                if any(_same(one.point, e.encoded_counterfactual) for e in answers if e.found)
            ]
            word = "promise" if len(numbers) == 1 else "promises"
            return f"{word} {', '.join(numbers)}" if numbers else None

        yield reference


def last_day(promises: Promising | None, valid_until: str | None) -> str | None:
    """The last day of letters: that of the promises, if there is one."""
    from proplace.core.errors import OptionError  # noqa: PLC0415

    expires = None if promises is None else promises.expires
    if expires is not None and valid_until not in (None, expires):
        raise OptionError(
            f"--valid-until {valid_until} is not the last day of the promises, --expires {expires}; "
            "leave it out, and letters say that day",
            name="--valid-until",
            value=valid_until,
        )
    return expires or valid_until


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


def _same(a: Array | None, b: Array | None) -> bool:
    return a is not None and b is not None and a.tolist() == b.tolist()

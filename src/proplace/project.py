"""One YAML file for one decision: its model, tables, delta, wording and ledger.

::

    model: model.npz
    schema: schema.yaml
    tables: {train: train.csv, people: people.csv, id: customer, drop: [approved]}
    delta: 0.01
    target: 1
    wording:
      subject: the loan
      outcomes: {0: refused, 1: approved}
      person: applicant
    letter: letter.html.j2
    ledger: promises.db

Paths are relative to the file. ``model``, ``tables.train`` and ``delta`` are required; ``delta`` is a
number or the path of a saved shift set. An error lists all problems of the file, not the first alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proplace.core.errors import OptionError, ProplaceError
from proplace.core.text import did_you_mean, listing, problem_list, short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pandas as pd

    from proplace.core.shifts import Shifts
    from proplace.explain.words import Wording
    from proplace.loaders.model import Model
    from proplace.schema.values import Label
    from proplace.tables.files import TableFile

DEFAULT_NAME = "proplace.yaml"
_MOST_BYTES = 1_000_000
_PARTS = {"tables": ("train", "people", "id", "drop"), "wording": ("subject", "outcomes", "person")}
_KEYS = (
    "model", "schema", "tables", "delta", "target", "cutoff", "tolerance", "wording", "letter",
    "ledger",
)  # fmt: skip


@dataclass(frozen=True)
class Project:
    """The contents of a project file.

    Attributes
    ----------
    model, train
        The model file and the training table.
    delta
        The largest change of any parameter, or the file of a shift set.
    schema
        The file that describes the features; None for a model that names its own columns.
    people, id
        The table of people who can be looked up, and its column with their ids.
    drop
        Columns of the tables that are not features.
    target
        Label of the class that people want.
    cutoff
        Probability from which the model accepts, as :meth:`Model.of` takes it.
    tolerance
        By how much features may miss a counterfactual, in original units.
    wording
        Keywords of :class:`proplace.Wording`.
    letter
        Jinja template of letters; None for the default one.
    ledger
        File or PostgreSQL address of the ledger; None if nothing can be promised.
    """

    model: Path
    train: Path
    delta: float | Path
    schema: Path | None = None
    people: Path | None = None
    id: str | None = None
    drop: tuple[str, ...] = ()
    target: Label = 1
    cutoff: Any = None
    tolerance: Mapping[str, Any] = field(default_factory=dict)
    wording: Mapping[str, Any] = field(default_factory=dict)
    letter: Path | None = None
    ledger: str | None = None

    @classmethod
    def read(cls, path: Path) -> Project:
        """Read a project file; raise one OptionError about all of its problems."""
        raw = _parsed(path)
        problems = _Problems(path.name)
        problems.found += [
            f"{short(key)} is not a known key{did_you_mean(key, _KEYS)}; the keys are "
            f"{', '.join(_KEYS)}"
            for key in raw
            if key not in _KEYS
        ]
        flat = {key: value for key, value in raw.items() if key in _KEYS and key not in _PARTS}
        for name, keys in _PARTS.items():
            part = raw.get(name) or {}
            if not isinstance(part, dict) or not set(part) <= set(keys):
                problems.found.append(f"{name} has the keys {', '.join(keys)}, not {short(part)}")
            elif name == "tables":
                flat |= part
            else:
                flat[name] = part
        found: dict[str, Any] = {}
        for each in dataclasses.fields(cls):
            value = flat.get(each.name)
            if value is None:
                if each.default is dataclasses.MISSING and each.name not in _OPTIONAL:
                    place = "tables.train" if each.name == "train" else each.name
                    problems.found.append(f"{place} is missing")
                continue
            with problems.of(each.name):
                read: Callable[[Any, Path], Any] = _READ.get(each.name, _path)
                found[each.name] = read(value, path.parent)
        if found.get("people") and not found.get("id"):
            problems.found.append("tables.people needs tables.id, the column with the ids")
        problems.raise_any()
        return cls(**found)

    def open(self) -> OpenedProject:
        """Read the model and all tables; raise one OptionError about everything that is wrong."""
        problems = _Problems("the project")
        found: dict[str, Any] = {
            "tolerance": dict(self.tolerance),
            "letter": self.letter,
            "ledger": self.ledger,
        }
        with problems.of("model"):
            model, table = self._model()
            found["model"], found["train"] = model, _rows(table, model)
            with problems.of("target"):
                found["target"] = model.classes[model.target(self.target)]
            with problems.of("delta"):
                found["delta"] = self._delta(model)
            with problems.of("wording"):
                found["wording"] = self._wording(model)
            with problems.of("tables.people"):
                found["people"] = self.people and _people(self.people, self.id, model)
            problems.found += [
                f"tolerance: {short(name)} is not a feature{did_you_mean(name, model.schema.by_name)}"
                for name in self.tolerance
                if name not in model.schema.by_name
            ]
        problems.raise_any()
        return OpenedProject(**found)

    def _model(self) -> tuple[Model, TableFile]:
        """Read the model with the names of its columns, and open the training table."""
        from proplace.loaders.model import Model  # noqa: PLC0415  (the command line starts at once)
        from proplace.schema import Schema  # noqa: PLC0415
        from proplace.tables.files import CsvTable, guessed, open_table  # noqa: PLC0415
        from proplace.tables.rows import with_booleans  # noqa: PLC0415

        model, table = Model.of(self.model, cutoff=self.cutoff), open_table(self.train)
        if self.schema is not None:
            return model.with_schema(Schema.read(self.schema)), table
        names = [name for name in table.columns if name not in (*self.drop, self.id)]
        if model.has_column_names or set(model.schema.by_name) <= set(names):
            model = model.with_names_of_table(names)
        else:
            model = model.with_column_names(names)
        first, _ = next(table.cells())
        return with_booleans(model, guessed(first) if isinstance(table, CsvTable) else first), table

    def _delta(self, model: Model) -> float | Shifts:
        from proplace.core.shifts import Shifts  # noqa: PLC0415
        from proplace.loaders.coordinates import shifts_for  # noqa: PLC0415

        delta = Shifts.load(self.delta) if isinstance(self.delta, Path) else self.delta
        shifts_for(model, delta)  # raises about a set of another architecture
        return delta

    def _wording(self, model: Model) -> Wording:
        from proplace.explain.words import Wording  # noqa: PLC0415

        wording = Wording(**self.wording)
        wording.outcome(0, model.classes)  # raises about words beside the wrong class
        return wording


_OPTIONAL = ("tolerance", "wording")  # fields with a default factory


@dataclass(frozen=True, eq=False)
class OpenedProject:
    """A project in memory.

    Attributes
    ----------
    model, train
        The model with the names of its columns, and the usable training rows.
    delta
        The radius or the shift set.
    target
        Label of the class that people want.
    wording
        What to call things.
    people
        People who can be looked up, by id; None if there is no such table.
    tolerance
        By how much features may be missed.
    letter
        Jinja template of letters; None for the default one.
    ledger
        Where the ledger is; None without one.
    """

    model: Model
    train: pd.DataFrame
    delta: float | Shifts
    target: Label
    wording: Wording
    people: pd.DataFrame | None = None
    tolerance: Mapping[str, float] = field(default_factory=dict)
    letter: Path | None = None
    ledger: str | None = None


# -- reading the file ------------------------------------------------------------------------------


class _Problems:
    """Collects errors, so that all of them are reported at once."""

    def __init__(self, title: str) -> None:
        self.title, self.found = title, list[str]()

    @contextlib.contextmanager
    def of(self, part: str) -> Iterator[None]:
        try:
            yield
        except ProplaceError as error:
            self.found.append(f"{part}: {error}")

    def raise_any(self) -> None:
        if self.found:
            raise OptionError(problem_list(self.title, self.found), name=self.title)


def _parsed(path: Path) -> dict[Any, Any]:
    import yaml  # noqa: PLC0415

    try:
        content = path.read_bytes()[: _MOST_BYTES + 1]
        if len(content) > _MOST_BYTES:
            raise OptionError(f"{path}: a project file has at most {_MOST_BYTES:,} bytes")
        raw = yaml.safe_load(content.decode("utf-8-sig"))
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror})", name=path.name) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        words = " ".join(str(error).split())
        raise OptionError(f"{path}: not valid YAML: {words}", name=path.name) from None
    if not isinstance(raw, dict):
        raise OptionError(f"{path}: a project file has the keys {', '.join(_KEYS)}", name=path.name)
    return raw


def _path(value: Any, folder: Path) -> Path:
    if not isinstance(value, str) or not value.strip():
        raise OptionError(f"give the path of a file, not {short(value)}")
    path = folder / value
    if not path.is_file():
        raise OptionError(f"there is no file {path}")
    return path


def _as_is(value: Any, _: Path) -> Any:
    return value


def _number_or_path(value: Any, folder: Path) -> float | Path:
    if isinstance(value, str):
        return _path(value, folder)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise OptionError(f"give a positive number or the file of a shift set, not {short(value)}")
    if not 0.0 < value < math.inf:
        raise OptionError(f"give a positive number such as 0.01, not {value}")
    return float(value)


def _text(value: Any, _: Path) -> str:
    if not isinstance(value, str) or not value.strip():
        raise OptionError(f"give a text, not {short(value)}")
    return value


def _texts(value: Any, _: Path) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise OptionError(f"give a list of names, not {short(value)}")
    return tuple(value)


def _mapping(value: Any, _: Path) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise OptionError(f"give names with values, not {short(value)}")
    return value


def _place(value: Any, folder: Path) -> str:
    text = _text(value, folder)
    return text if "://" in text else str(folder / text)


_READ: dict[str, Callable[[Any, Path], Any]] = {
    "delta": _number_or_path,
    "id": _text,
    "drop": _texts,
    "target": _as_is,
    "cutoff": _as_is,
    "tolerance": _mapping,
    "wording": _mapping,
    "ledger": _place,
}
"""How a value is read; all others are paths."""


# -- reading the tables ----------------------------------------------------------------------------


def _rows(table: TableFile, model: Model) -> pd.DataFrame:
    """Read the features of a table, without the rows that the model cannot use."""
    frame, broken = _read(table, model)
    return frame.drop(index=list({**model.schema.problems(frame), **broken}))


def _read(table: TableFile, model: Model) -> tuple[pd.DataFrame, Mapping[int, Any]]:
    names = list(model.schema.by_name)
    table.check_columns(names, others=table.columns)
    frame, broken = table.read(model.schema)
    if frame.empty:
        raise OptionError(f"{table.path}: there are column names but no rows")
    return frame[names], broken


def _people(path: Path, column: str | None, model: Model) -> pd.DataFrame:
    """Read people who can be looked up, by their id; each has an id of its own."""
    from proplace.schema.values import is_missing  # noqa: PLC0415
    from proplace.tables.files import open_table  # noqa: PLC0415

    table = open_table(path)
    if column is None or column not in table.columns:
        raise OptionError(
            f"{path.name} has no column {short(column)}; it has {listing(table.columns)}"
        )
    frame, _ = _read(table, model)
    cells = (cell for part, _ in table.cells() for cell in part[column])
    ids = ["" if is_missing(cell) else str(cell).strip() for cell in cells]
    rows: dict[str, int] = {}
    for row, each in enumerate(ids):
        if not each or each in rows:
            same = f"has the same {column!r} as row {rows[each]}" if each else f"has no {column!r}"
            raise OptionError(f"{path.name}: row {row} {same}; give everybody an id of their own")
        rows[each] = row
    return frame.set_axis(ids)

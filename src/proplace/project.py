"""One YAML file for one decision: its model, tables, shift set, requests, wording and ledger.

::

    model: model.npz
    schema: schema.yaml
    tables: {train: train.csv, people: people.csv, id: customer, drop: [approved]}
    delta: 0.01
    target: 1
    request: {immutable: [age], tolerance: {income: 500}}
    wording: {subject: the loan, outcomes: {0: refused, 1: approved}}
    ledger: promises.db

Paths are relative to the file. Every key is optional, and ``KEYS`` documents all of them. An error names
the keys that a command needs, or lists all problems of the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from proplace.core.errors import OptionError, ProplaceError, SchemaError, TableError, TargetError
from proplace.core.request import Request
from proplace.core.text import did_you_mean, listing, problem_list, short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pandas as pd

    from proplace.core.shifts import Shifts
    from proplace.explain.words import Wording
    from proplace.loaders.model import Model
    from proplace.schema.values import Label
    from proplace.tables.files import TableFile

DEFAULT_NAME = "proplace.yaml"
_MAX_BYTES = 1_000_000


@dataclass(frozen=True)
class Project:
    """The contents of a project file.

    The fields are the keys of the file (``KEYS``). The keys of ``tables`` and ``serve`` are fields of
    their own, the keys of the other parts are mappings.
    """

    place: Path | None = None
    """The file itself; None without one."""

    model: Path | None = None
    classes: tuple[Label, ...] | None = None
    cutoff: Any = None
    schema: Path | None = None
    train: Path | None = None
    people: Path | None = None
    id: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    predictions: str | None = None
    delimiter: str | None = None
    encoding: str = "utf-8"
    delta: float | Path | None = None
    required_models: tuple[tuple[Path, float | Path | None], ...] = ()
    target: Label = 1
    request: Mapping[str, Any] = field(default_factory=dict)
    explainer: Mapping[str, Any] = field(default_factory=dict)
    batch: Mapping[str, Any] = field(default_factory=dict)
    calibration: Mapping[str, Any] = field(default_factory=dict)
    wording: Mapping[str, Any] = field(default_factory=dict)
    letter: Path | None = None
    ledger: str | None = None
    hosts: tuple[str, ...] = ()
    path: str = ""

    @classmethod
    def read(cls, place: Path, *, without: Sequence[str] = ()) -> Self:
        """Read a project file ``without`` some keys; raise one OptionError about all problems."""
        problems = _Problems(place.name)
        found: dict[str, Any] = {"place": place}
        for key, value in _flat(_parsed(place), problems):
            part, _, name = key.rpartition(".")
            if key in without:
                continue
            with problems.of(key):
                read = KEYS[key].read(value, place.parent)
                if part in ("", "tables", "serve"):
                    found[name] = read
                else:
                    found[part] = {**found.get(part, {}), name: read}
        with problems.of("request"):
            Request(0, **found.get("request", {}))
        problems.raise_any()
        return cls(**found)

    @classmethod
    def find(cls, place: Path | None = None, *, without: Sequence[str] = ()) -> Self:
        """Read a project file, or ``proplace.yaml`` of the working folder if there is one."""
        if place is None and not Path(DEFAULT_NAME).is_file():
            return cls()
        return cls.read(place or Path(DEFAULT_NAME), without=without)

    def changed(self, **fields: Any) -> Self:
        """Return a project with some fields replaced; None and empty lists change nothing."""
        given = {name: value for name, value in fields.items() if value not in (None, [], ())}
        for name in ("request", "explainer", "batch", "calibration"):
            if name in given:
                options = {key: value for key, value in given[name].items() if value is not None}
                given[name] = {**getattr(self, name), **options}
        return dataclasses.replace(self, **given)

    def check_has(self, *names: str, options: Sequence[str] = ()) -> None:
        """Raise one OptionError about all fields that are missing.

        ``options`` are the fields that the caller has an option for.
        """
        missing = [name for name in names if getattr(self, name) is None]
        if missing:
            keys = ", ".join(f"tables.{name}" if name in _TABLES else name for name in missing)
            given = " ".join(f"--{name}" for name in missing if name in options)
            file = DEFAULT_NAME if self.place is None else str(self.place)
            raise OptionError(
                f"{keys} {'is' if len(missing) == 1 else 'are'} missing: add to {file}"
                f"{f', or give {given}' if given else ''}",
                name=missing[0],
            )

    # -- the model and the tables --------------------------------------------------------------

    @property
    def others(self) -> list[str]:
        """Columns of the tables that are not features."""
        return [*self.id, *self.drop, *([] if self.predictions is None else [self.predictions])]

    def table(self, path: Path) -> TableFile:
        """Open a table with the delimiter and the encoding of the project."""
        from proplace.tables.files import open_table  # noqa: PLC0415  (the commands start at once)

        return open_table(path, delimiter=self.delimiter, encoding=self.encoding)

    def read_model(self, path: Path | None = None) -> Model:
        """Read the model, or another one, with the classes and the cut-off of the project."""
        from proplace.loaders.model import Model  # noqa: PLC0415

        if path is None:
            self.check_has("model")
        model = Model.of(path or self.model)
        if self.classes is not None:
            model = model.with_classes(self.classes)
        return model if self.cutoff is None else Model.of(model, cutoff=self.cutoff)

    def named(self, model: Model, table: TableFile, *, scaled: bool = True) -> Model:
        """Return a model whose columns have their names, from the schema or from a table.

        ``scaled=False`` is for other models (``described``).
        """
        if self.schema is not None:
            return self.described(model, scaled=scaled)
        names = [name for name in table.columns if name not in self.others]
        if model.has_column_names or set(model.schema.by_name) <= set(names):
            return _with_booleans(model.with_names_of_table(names), table)
        if len(names) != len(model.schema.features):
            raise TableError(
                f"{table.path}: {len(names)} columns, but the network takes "
                f"{len(model.schema.features)}. Name the columns that are not inputs in tables.drop of "
                f"the project file, or give a schema{table.hint()}",
                name=table.path.name,
                value=names,
            )
        return _with_booleans(model.with_column_names(names), table)

    def described(self, model: Model, *, scaled: bool = True) -> Model:
        """Return a model with the features of the schema file.

        ``scaled=False`` keeps the preprocessing of the model, as another model was fitted with its own.
        """
        from proplace.schema import Schema  # noqa: PLC0415

        if self.schema is None:
            return model
        schema = Schema.read(self.schema)
        try:
            own = model.has_preprocessing and not scaled
            return model.with_schema(schema.unscaled() if own else schema)
        except SchemaError as error:
            raise SchemaError(
                f"{self.schema}: {error}", name=error.name, value=error.value
            ) from None

    def label(self, model: Model) -> Label:
        """Return the target as a label of a model; a text may stand for a number or a truth value."""
        if not isinstance(self.target, str):
            with contextlib.suppress(TargetError):
                return model.classes[model.target(self.target)]
        for label in model.classes:
            if self.target in _texts(label):
                return label
        raise TargetError(
            f"target {self.target!r} is not a class of the model"
            f"{did_you_mean(self.target, model.classes)}. Its classes are {listing(model.classes)}. "
            "Name the wanted one as --target, or as target in the project file",
            name="--target",
            value=self.target,
        )

    def shifts(self, delta: float | Path | None = None) -> float | Shifts:
        """Return the radius, or read the shift set."""
        from proplace.core.shifts import Shifts  # noqa: PLC0415

        chosen = self.delta if delta is None else delta
        if chosen is None:
            self.check_has("delta")
        return Shifts.load(chosen) if isinstance(chosen, Path) else float(chosen or 0.0)

    def words(self, model: Model) -> Wording:
        """Return the wording, or raise about words for classes that the model does not have."""
        from proplace.explain.words import Wording  # noqa: PLC0415

        wording = Wording(**self.wording)
        wording.outcome(0, model.classes)
        return wording

    def open(self) -> OpenedProject:
        """Read the model and all tables; raise one OptionError about everything that is wrong."""
        from proplace.loaders.align import shifts_for  # noqa: PLC0415

        self.check_has("model", "train", "delta")
        problems = _Problems("the project")
        found: dict[str, Any] = {
            "request": dict(self.request),
            "explainer": dict(self.explainer),
            "letter": self.letter,
            "ledger": self.ledger,
        }
        with problems.of("model"):
            table = self.table(self.train or Path())
            model = self.named(self.read_model(), table)
            found["model"], found["train"] = model, _rows(table, model)
            with problems.of("target"):
                found["target"] = self.label(model)
            with problems.of("delta"):
                found["delta"] = self.shifts()
                shifts_for(model, found["delta"])  # raises about a set of another architecture
            with problems.of("wording"):
                found["wording"] = self.words(model)
            with problems.of("tables.people"):
                found["people"] = self.people and _people(self, model)
            with problems.of("request"):
                _check_names(self.request, model)
        if self.required_models:
            problems.found.append("required_models: the workbench takes one model. Leave them out")
        problems.raise_any()
        return OpenedProject(**found)


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
    request
        Fields of a request that differ from its defaults.
    explainer
        Options of the explainer that differ from its defaults.
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
    request: Mapping[str, Any] = field(default_factory=dict)
    explainer: Mapping[str, Any] = field(default_factory=dict)
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


def _parsed(place: Path) -> dict[Any, Any]:
    import yaml  # noqa: PLC0415

    try:
        content = place.read_bytes()[: _MAX_BYTES + 1]
        if len(content) > _MAX_BYTES:
            raise OptionError(f"{place}: a project file has at most {_MAX_BYTES:,} bytes")
        raw = yaml.safe_load(content.decode("utf-8-sig"))
    except OSError as error:
        raise OptionError(f"{place}: cannot be read ({error.strerror})", name=place.name) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        words = " ".join(str(error).split())
        raise OptionError(f"{place}: not valid YAML: {words}", name=place.name) from None
    if not isinstance(raw, dict):
        raise OptionError(
            f"{place}: a project file has keys such as model: m.onnx", name=place.name
        )
    return raw


def _flat(raw: Mapping[Any, Any], problems: _Problems) -> Iterator[tuple[str, Any]]:
    """Yield known keys with their values. The keys of a part have its name before them."""
    parts = {key.partition(".")[0] for key in KEYS if "." in key}
    top = [key for key in KEYS if "." not in key] + sorted(parts)
    for key, value in raw.items():
        if key not in top:
            problems.found.append(_unknown(key, top))
        elif key not in parts:
            yield key, value
        elif not isinstance(value, dict):
            problems.found.append(f"{key}: give names with values, not {short(value)}")
        else:
            names = [name.partition(".")[2] for name in KEYS if name.startswith(f"{key}.")]
            for name, inner in value.items():
                if name in names:
                    yield f"{key}.{name}", inner
                else:
                    problems.found.append(f"{key}: {_unknown(name, names)}")


def _unknown(key: object, known: Sequence[str]) -> str:
    return f"{short(key)} is not a known key{did_you_mean(key, known)}; the keys are {', '.join(known)}"


def _path(value: Any, folder: Path) -> Path:
    if not isinstance(value, str) or not value.strip():
        raise OptionError(f"give the path of a file, not {short(value)}")
    path = folder / value
    if not path.is_file():
        raise OptionError(f"there is no file {path}. Leave the key out, or correct the path")
    return path


def _as_is(value: Any, _: Path) -> Any:
    return value


def _number(value: Any, _: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise OptionError(f"give a number, not {short(value)}")
    return value


def _positive(value: Any, folder: Path) -> float:
    if not 0.0 < _number(value, folder) < math.inf:
        raise OptionError(f"give a positive number such as 0.01, not {value}")
    return float(value)


def _positives(value: Any, folder: Path) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise OptionError(f"give a list of numbers, not {short(value)}")
    return tuple(_positive(each, folder) for each in value)


def _flag(value: Any, _: Path) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"give true or false, not {short(value)}")
    return value


def _one_of(*options: str) -> Callable[[Any, Path], str]:
    def read(value: Any, _: Path) -> str:
        if value not in options:
            raise OptionError(f"give {' or '.join(options)}, not {short(value)}")
        return str(value)

    return read


def _delta(value: Any, folder: Path) -> float | Path:
    if isinstance(value, str):
        return _path(value, folder)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise OptionError(f"give a positive number or the file of a shift set, not {short(value)}")
    return _positive(value, folder)


def _models(value: Any, folder: Path) -> tuple[tuple[Path, float | Path | None], ...]:
    """Read required models: a path, or a path with a delta of its own."""
    found = []
    for each in value if isinstance(value, list) else [value]:
        entry = {"model": each} if isinstance(each, str) else each
        if not isinstance(entry, dict) or "model" not in entry or set(entry) - {"model", "delta"}:
            raise OptionError(f"give a path, or {{model: PATH, delta: 0.01}}, not {short(each)}")
        delta = entry.get("delta")
        own = None if delta is None else _delta(delta, folder)
        found.append((_path(entry["model"], folder), own))
    return tuple(found)


def _text(value: Any, _: Path) -> str:
    if not isinstance(value, str) or not value:
        raise OptionError(f"give a text, not {short(value)}")
    return value


def _names(value: Any, _: Path) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise OptionError(f"give a list of names, not {short(value)}")
    return tuple(names)


def _labels(value: Any, _: Path) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise OptionError(f"give a list of labels, not {short(value)}")
    return tuple(value)


def _mapping(value: Any, _: Path) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise OptionError(f"give names with values, not {short(value)}")
    return value


def _ledger(value: Any, folder: Path) -> str:
    text = _text(value, folder)
    return text if "://" in text else str(folder / text)


def _sub_path(value: Any, folder: Path) -> str:
    text = _text(value, folder)
    if not text.startswith("/") or not text.isprintable():
        raise OptionError(f"give a path that begins with a slash, such as /workbench, not {text}")
    return text.rstrip("/")


class Key(NamedTuple):
    """A key of the project file: the function that reads its value, and its meaning."""

    read: Callable[[Any, Path], Any]
    help: str


KEYS: dict[str, Key] = {
    "model": Key(_path, "Trained model: .onnx or .npz."),
    "classes": Key(_labels, "Labels of its outputs, if the file names none: [refused, approved]."),
    "cutoff": Key(
        _as_is, "Probability from which the model gives a class: {approved: 0.7}. Default: 0.5."
    ),
    "schema": Key(
        _path, "Features and rules (proplace schema). Default: the columns of the model."
    ),
    "tables.train": Key(_path, "Training rows: CSV (.gz too) or Parquet."),
    "tables.people": Key(_path, "People: the default of --input, and of the workbench."),
    "tables.id": Key(
        _names, "Column, or list of columns, to keep beside results; the first names the person."
    ),
    "tables.drop": Key(_names, "Columns that are not features, such as the label."),
    "tables.predictions": Key(
        _text, "Column with classes that the model gave. A clear difference is an error."
    ),
    "tables.delimiter": Key(_text, "Delimiter of CSV files. Default: detected for each file."),
    "tables.encoding": Key(_text, "Encoding of CSV files. Default: utf-8."),
    "delta": Key(_delta, "Radius of the shift set, such as 0.01, or the file of a shift set."),
    "required_models": Key(
        _models, "Other models that must accept too: [old.onnx, {model: b.onnx, delta: 0.01}]."
    ),
    "target": Key(_as_is, "Label of the class that people want. Default: 1."),
    "request.count": Key(_number, "Largest number of alternatives per person. Default: 1."),
    "request.prefer": Key(_as_is, "nearest or sparse. Default: nearest."),
    "request.max_changes": Key(_as_is, "Largest number of changed features. Default: any."),
    "request.immutable": Key(_as_is, "Features that may not change."),
    "request.increasing": Key(_as_is, "Features that may not decrease."),
    "request.decreasing": Key(_as_is, "Features that may not increase."),
    "request.ranges": Key(_mapping, "Allowed ranges: {income: [0, 90000]}; null keeps an end."),
    "request.tolerance": Key(
        _mapping, "Covered misses: {income: 500, age: [0, 1]}, below and above."
    ),
    "request.typical": Key(_as_is, "true: prefer typical counterfactuals; false: do not."),
    "request.gap": Key(_number, "Optimality gap, between 0 and 1. Default: 0.01."),
    "explainer.k": Key(_number, "Robust neighbours that span the region. Default: 20."),
    "explainer.region": Key(_one_of("hull", "box"), "hull or box. Default: hull."),
    "explainer.search": Key(_one_of("tree", "bilevel"), "tree or bilevel. Default: tree."),
    "explainer.solver": Key(_one_of("highs", "gurobi"), "highs or gurobi. Default: highs."),
    "explainer.time_limit": Key(_number, "Seconds per person; .inf: no limit. Default: 10."),
    "batch.format": Key(_one_of("csv", "parquet"), "csv or parquet. Default: that of the input."),
    "batch.certificates": Key(_flag, "Whether results have certificates. Default: true."),
    "batch.seconds": Key(_positive, "Seconds between shards, lost at most by a kill. Default: 5."),
    "batch.jobs": Key(_number, "Processes; -1: one per processor. Default: 1."),
    "batch.backend": Key(_one_of("loky", "dask", "ray"), "loky, dask or ray. Default: loky."),
    "batch.address": Key(_text, "Address of a Dask scheduler or a Ray cluster that runs."),
    "calibration.deltas": Key(_positives, "Radii to try. Default: a grid."),
    "calibration.validity": Key(
        _number, "Share of counterfactuals that retrained models must accept. Default: 0.95."
    ),
    "calibration.min_robust_share": Key(
        _number, "Share of the accepted training rows that must stay robust. Default: 0.1."
    ),
    "calibration.quantile": Key(
        _number, "Quantile of the parameter changes that is reported. Default: 1."
    ),
    "wording.subject": Key(_text, "Subject of the decision: the loan."),
    "wording.outcomes": Key(_mapping, "Names of the classes: {0: refused, 1: approved}."),
    "wording.person": Key(_text, "Word for a person. Default: person."),
    "letter": Key(_path, "Jinja template of letters. Default: a plain letter."),
    "ledger": Key(_ledger, "SQLite file or PostgreSQL address of the ledger."),
    "serve.hosts": Key(_names, "Names by which a proxy calls the workbench."),
    "serve.path": Key(_sub_path, "Sub-path of the workbench behind a proxy, such as /workbench."),
}
"""Every key of the file, by its dotted name."""

_TABLES = tuple(key.removeprefix("tables.") for key in KEYS if key.startswith("tables."))


# -- reading the tables ----------------------------------------------------------------------------


def _texts(label: Label) -> set[str]:
    """Return the texts that mean a label: 1 means 1.0, and true means True."""
    text = str(label)
    number = isinstance(label, float) and label.is_integer()
    return {
        text,
        text.lower() if isinstance(label, bool) else text,
        f"{label:.0f}" if number else text,
    }


def _with_booleans(model: Model, table: TableFile) -> Model:
    """Return a model whose features with only true and false in a table are boolean."""
    from proplace.tables.files import CsvTable, guessed  # noqa: PLC0415
    from proplace.tables.rows import with_booleans  # noqa: PLC0415

    frame, _ = next(table.cells(), (None, None))
    if frame is None:
        return model
    return with_booleans(model, guessed(frame) if isinstance(table, CsvTable) else frame)


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


def _people(project: Project, model: Model) -> pd.DataFrame:
    """Read people who can be looked up, by their unique id."""
    from proplace.schema.values import is_missing  # noqa: PLC0415

    table = project.table(project.people or Path())
    name = table.path.name
    if not project.id or project.id[0] not in table.columns:
        column = f"no column {short(project.id[0])}" if project.id else "no id column"
        raise OptionError(
            f"{name} has {column}. Name one as tables.id: it has {listing(table.columns)}"
        )
    column = project.id[0]
    frame, _ = _read(table, model)
    cells = (cell for part, _ in table.cells() for cell in part[column])
    ids = ["" if is_missing(cell) else str(cell).strip() for cell in cells]
    rows: dict[str, int] = {}
    for row, each in enumerate(ids):
        if not each or each in rows:
            same = f"has the same {column!r} as row {rows[each]}" if each else f"has no {column!r}"
            raise OptionError(f"{name}: row {row} {same}. Give everybody an id of their own")
        rows[each] = row
    return frame.set_axis(ids)


def _check_names(request: Mapping[str, Any], model: Model) -> None:
    """Raise about features of a request that the model does not have."""
    for option in ("immutable", "increasing", "decreasing", "ranges", "tolerance"):
        for name in request.get(option, ()):
            if name not in model.schema.by_name:
                raise OptionError(
                    f"{option}: {short(name)} is not a feature"
                    f"{did_you_mean(name, model.schema.by_name)}"
                )

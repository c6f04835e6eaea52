"""What is served: models, the ledger, limits; from options or a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from proplace.core.errors import OptionError

if TYPE_CHECKING:
    from typing import Self

_MEGABYTE = 2**20

Place = Annotated[Path, AfterValidator(Path.absolute)]
"""A path that stays the same when a process works somewhere else."""


ModelName = Annotated[str, Field(pattern=r"^\w[\w.-]{0,63}$")]
"""A name that can stand in an address: letters, digits, dots and hyphens."""


def _ledger(place: str) -> str:
    return place if "://" in place else str(Path(place).absolute())


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), validate_default=True
    )


class Words(_Strict):
    """What to call things: see :class:`proplace.Wording`.

    ``outcomes`` is what the subject is in each class: by the label of the class, or in the order of the
    classes.
    """

    model_config = ConfigDict(coerce_numbers_to_str=True)  # labels are often numbers

    subject: str = "the outcome"
    outcomes: dict[str, str] | tuple[str, ...] = ()
    person: str = "person"


class Served(_Strict):
    """One model that is served, with all that its answers need.

    Attributes
    ----------
    model, train
        Files of the model and of its training rows.
    schema_file
        Schema file (``schema`` in YAML).
    delta, shifts
        The set of networks for which answers are proved: exactly one of them.
    target
        Label of the wanted class.
    people
        A table of people who can be looked up, by the column ``ids``.
    drop
        Columns of the tables that are no features.
    purpose
        The decision that its promises are about in the ledger; left out: its name where several models
        are served, else none.
    """

    model: Place
    train: Place
    schema_file: Place | None = Field(default=None, alias="schema")
    delta: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    shifts: Place | None = None
    target: str = "1"
    people: Place | None = None
    ids: str | None = None
    drop: tuple[str, ...] = ()
    words: Words = Words()
    purpose: str = ""

    @model_validator(mode="after")
    def _one_set(self) -> Self:
        if (self.delta is None) == (self.shifts is None):
            raise ValueError("give delta (a number) or shifts (a file), and not both")
        if self.people is not None and self.ids is None:
            raise ValueError("people are looked up by an id: name its column as ids")
        return self


class Limits(_Strict):
    """How much is taken on.

    Attributes
    ----------
    workers
        Processes that search.
    queue, jobs
        Searches that wait, and jobs that have not ended; more are refused with status 429.
    seconds
        Time limit of one person's search.
    body, model_file
        Bytes of a request, and of an uploaded model.
    header, sending
        Seconds in which the header of a request must have come; and its body, which has one more for
        each 64 KiB that have come.
    parameters
        Numbers that an uploaded model may hold.
    memory
        Bytes that a process which searches may hold (on Linux); one that holds more is ended, and its
        question fails.
    people
        People of one request; more than ``at_once`` of them become a job.
    requests
        Requests of one key or address in a minute.
    uploads
        Files of audited models that are kept, so that they can go live; those that are live are kept
        beside them.
    keep
        Hours for which finished jobs are kept: they hold personal data.
    session
        Hours until a login ends.
    niceness
        How far searches stand back behind the process that serves (as ``nice`` counts), so that
        questions which are answered in an instant do not wait for them.
    """

    workers: int = Field(default=2, ge=1, le=64)
    queue: int = Field(default=64, ge=1, le=10_000)
    jobs: int = Field(default=100, ge=1, le=10_000)
    seconds: float = Field(default=30.0, gt=0.0, le=3600.0)
    body: int = Field(default=4 * _MEGABYTE, ge=1024)
    model_file: int = Field(default=64 * _MEGABYTE, ge=1024)
    header: float = Field(default=10.0, gt=0.0)
    sending: float = Field(default=30.0, gt=0.0)
    parameters: int = Field(default=2_000_000, ge=1)
    memory: int = Field(default=4096 * _MEGABYTE, ge=512 * _MEGABYTE)
    people: int = Field(default=10_000, ge=1)
    at_once: int = Field(default=4, ge=1)
    requests: int = Field(default=1200, ge=1)
    uploads: int = Field(default=20, ge=1)
    keep: float = Field(default=24.0, gt=0.0)
    session: float = Field(default=12.0, gt=0.0)
    niceness: int = Field(default=10, ge=0, le=19)


class Config(_Strict):
    """Everything that the service is told.

    Attributes
    ----------
    models
        The models by name.
    ledger
        File or URL of the ledger.
    state
        SQLite file of keys, sessions and jobs.
    host, port
        Where it listens; anything but this machine needs keys, and so does a name in ``hosts``.
    hosts
        Names by which it may be called, beside those of this machine.
    title
        Heading of the page.
    hint
        What is said on the page under the field for the id of a person; nothing where it is empty.
    """

    models: dict[ModelName, Served] = Field(min_length=1)
    ledger: Annotated[str, AfterValidator(_ledger)] = "promises.db"
    state: Place = Path("serve.db")
    host: str = "127.0.0.1"
    port: int = Field(default=8765, ge=0, le=65535)
    hosts: tuple[str, ...] = ()
    title: str = "proplace"
    limits: Limits = Limits()
    hint: str = ""

    @model_validator(mode="after")
    def _purposes(self) -> Self:
        """Models that decide about different things do not share their promises."""
        several = len(self.models) > 1
        for name, served in self.models.items():
            if several and "purpose" not in served.model_fields_set:
                self.models[name] = served.model_copy(update={"purpose": name})
        known = [served.purpose for served in self.models.values()]
        if len(set(known)) < len(known):
            raise ValueError("each model needs a purpose of its own: no two may have the same")
        return self

    @property
    def local(self) -> bool:
        """Whether nobody but this machine calls it: no other address, and no name for others."""
        return self.host in ("127.0.0.1", "::1", "localhost") and not self.hosts


def read_config(path: Path) -> Config:
    """Read a YAML file; paths in it are relative to it."""
    try:
        facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: is no YAML file ({error})") from None
    if not isinstance(facts, dict):
        raise OptionError(f"{path}: must hold models, by name, and settings; see docs/serve.md")
    return config_of(_relative(facts, path.parent), str(path))


def config_of(facts: dict[str, Any], where: str = "the configuration") -> Config:
    """Check settings; an error says which of them is wrong."""
    try:
        return Config.model_validate(facts)
    except ValidationError as error:
        said = [
            f"{'.'.join(map(str, one['loc'])) or 'settings'}: {one['msg']}"
            for one in error.errors()
        ]
        raise OptionError(f"{where}: {'; '.join(said)}") from None


def _relative(facts: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Paths of a file, seen from its folder."""
    found = dict(facts)
    models = found.get("models")
    if isinstance(models, dict):
        found["models"] = {
            name: {
                key: str(folder / value)
                if key in ("model", "train", "schema", "shifts", "people")
                and isinstance(value, str)
                else value
                for key, value in served.items()
            }
            if isinstance(served, dict)
            else served
            for name, served in models.items()
        }
    for key in ("ledger", "state"):
        value = found.get(key)
        if isinstance(value, str) and "://" not in value:
            found[key] = str(folder / value)
    return found

"""Schema files: YAML or JSON, made to be edited by hand.

::

    format: proplace-schema-1
    features:
    - {kind: continuous, name: age, lower: 17, upper: 90, step: 1, direction: increasing}
    - {kind: binary, name: sex, values: [Female, Male], immutable: true}
    rules:
    - kind: linear
      terms: {savings: 1, debt: -1}
      lower: 0
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from proplace.core import limits
from proplace.core.errors import SchemaError
from proplace.core.files import atomic_write
from proplace.core.text import (
    UNSEEN,
    VALUE,
    clipped,
    did_you_mean,
    has_unseen,
    listing,
    problem_list,
    short,
    visible,
    whole,
)
from proplace.schema.features import Binary, Categorical, Continuous, Ordinal
from proplace.schema.rules import IfThen, Linear, Then
from proplace.schema.values import differs, fields_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proplace.schema.schema import Schema

FORMAT = "proplace-schema-1"
_YAML = (".yaml", ".yml")
_KEYS = ("format", "features", "rules")
_ON_DRAFTS = """\
# drafted: the ends of the range that were taken from the table. Nothing is proved beyond them.
# Another lower or upper is declared. If they are right as they are, delete their key drafted.
"""


def read(path: Path, make: Callable[..., Schema]) -> Schema:
    """Read a schema file and make the schema. Errors name the line and the key of every problem."""
    facts = _load(path)
    for key in facts:
        if key not in _KEYS:
            raise SchemaError(
                f"{path.name}: {_line(facts, key)}{short(key)} is not a known key"
                f"{did_you_mean(key, _KEYS)}; known keys are {', '.join(_KEYS)}",
                name=path.name,
            )
    return _made(facts, make, path.name)


def write(path: Path, schema: Schema) -> None:
    """Write a schema file atomically."""
    text = text_of(schema, _suffix(path))
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))


def text_of(schema: Schema, suffix: str) -> str:
    """Return the text of a schema file: YAML or JSON, by its suffix."""
    data: dict[str, Any] = {"format": FORMAT, **to_dict(schema)}
    if not schema.rules:
        del data["rules"]
    if suffix not in _YAML:
        return _json_text(data)
    drafted = any("drafted" in feature for feature in data["features"])
    return (_ON_DRAFTS if drafted else "") + _yaml_text(data)


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (*_YAML, ".json"):
        raise SchemaError(f"{path.name}: the name must end in .yaml, .yml or .json", name=path.name)
    return suffix


def _load(path: Path) -> dict[Any, Any]:
    """Return the content of a schema file of this format."""
    suffix = _suffix(path)
    text = _text(path)
    try:
        raw = _parse_yaml(text) if suffix in _YAML else json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise SchemaError(
            f"{path.name}: lists and mappings are nested too deeply; a schema needs few levels",
            name=path.name,
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        words = clipped(visible(_reason(error)), 4 * VALUE)
        kind = "YAML" if suffix in _YAML else "JSON"
        raise SchemaError(f"{path.name}: not valid {kind}: {words}", name=path.name) from None
    found = raw.get("format") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or found != FORMAT:
        raise SchemaError(
            f"{path.name}: not a schema file of this version: it must have 'format: {FORMAT}', "
            f"not {short(found)}",
            name=path.name,
        )
    return raw


def _reason(error: Exception) -> str:
    """Return the problem of a file that cannot be parsed, with the line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(limits.SCHEMA_BYTES + 1)
        if len(content) > limits.SCHEMA_BYTES:
            raise SchemaError(
                f"{path.name}: a schema file has at most {limits.SCHEMA_BYTES:,} bytes; is this one?",
                name=path.name,
            )
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise SchemaError(f"{path}: no such file", name=path.name) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"{path}: cannot be read ({error})", name=path.name) from None


# -- features and rules as plain data --------------------------------------------------------------


def to_dict(schema: Schema) -> dict[str, Any]:
    """Return the features and rules of a schema as JSON holds them."""
    return {
        "features": [plain(part) for part in schema.features],
        "rules": [plain(part) for part in schema.rules],
    }


def plain(value: Any) -> dict[str, Any]:
    """Return a feature or rule as a dictionary: its kind first, defaults left out."""
    fields = {
        field.name: _plain(getattr(value, field.name), labels=field.name in _LABELS)
        for field in fields_of(value)
        if differs(getattr(value, field.name), field.default) and field.name not in _IN_KIND
    }
    return {"kind": value.kind, **fields}


_LABELS = ("levels", "categories", "values", "category", "when")
_IN_KIND = ("change",)  # the kind of a consequence implies it


def _plain(value: Any, *, labels: bool) -> Any:
    """Return 17.0 as 17 if it is a number, and a label unchanged."""
    if dataclasses.is_dataclass(value):
        return plain(value)
    if isinstance(value, Mapping):
        return {key: _plain(item, labels=labels) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, labels=labels) for item in value]
    return whole(value) if isinstance(value, float) and not labels else value


class _Kind(NamedTuple):
    """Class of the entries of one kind, their keys, and the keys that an entry must have."""

    make: Callable[..., Any]
    keys: tuple[str, ...]
    needed: tuple[str, ...]
    implied: Mapping[str, Any] = {}

    @classmethod
    def of(cls, made: type[Any]) -> _Kind:
        fields = fields_of(made)
        needed = (field.name for field in fields if field.default is dataclasses.MISSING)
        return cls(made, tuple(field.name for field in fields), tuple(needed))


_BOUNDED = ("feature", "at_least", "at_most")
_KINDS: dict[str, dict[str, _Kind]] = {
    "features": {cls.kind: _Kind.of(cls) for cls in (Continuous, Ordinal, Categorical, Binary)},
    "rules": {cls.kind: _Kind.of(cls) for cls in (Linear, IfThen)},
    "then": {
        "change": _Kind(Then, _BOUNDED, ("feature",), {"change": True}),
        "value": _Kind(Then, _BOUNDED, ("feature",)),
        "is": _Kind(Then, ("feature", "category"), ("feature", "category")),
    },
}


def from_dict(facts: Mapping[str, Any], make: Callable[..., Schema]) -> Schema:
    """Make a schema of the features and rules that :func:`to_dict` returned."""
    return _made(facts, make, "Schema")


def _made(facts: Mapping[str, Any], make: Callable[..., Schema], title: str) -> Schema:
    problems: list[str] = []
    features = _parts(facts, "features", problems)
    # An empty 'rules:' line reads as null, and means no rules.
    rules = [] if facts.get("rules") is None else _parts(facts, "rules", problems)
    if not problems:
        try:
            return make(features, rules=rules)
        except SchemaError as error:
            problems = [f"{_line_of_part(facts, text)}{text}" for text in error.problems]
    raise SchemaError(problem_list(title, problems), name=title)


def _parts(entry: Mapping[str, Any], key: str, problems: list[str], place: str = "") -> list[Any]:
    """Make the features, rules or consequences in a list, and collect the problems of the others."""
    items = entry.get(key)
    if not isinstance(items, list):
        problems.append(f"{_line(entry, key)}{place}{key} must be a list, not {short(items)}")
        return []
    return [
        _part(item, f"{place}{key} {n}", key, problems, _line(entry, key))
        for n, item in enumerate(items)
    ]


def _part(item: Any, place: str, key: str, problems: list[str], line: str) -> Any:
    kinds = _KINDS[key]
    if not isinstance(item, dict):
        problems.append(
            f"{line}{place}: {short(item)} is not an entry with a kind ({', '.join(kinds)})"
        )
        return None
    name, word = item.get("name"), item.get("kind")
    place += f" ({short(name)})" if name is not None else ""
    kind = kinds.get(word) if isinstance(word, str) else None
    if kind is None:
        problem = (
            f"kind {short(word)} is unknown{did_you_mean(word, kinds)}; known kinds are "
            if "kind" in item
            else "'kind' is missing. It is one of "
        )
        problems.append(f"{_line(item, 'kind')}{place}: {problem}{listing(kinds)}")
        return None
    given = {key: value for key, value in item.items() if key != "kind"}
    wrong = [
        f"{_line(item, key)}{place}: {short(key)} is not a known key{did_you_mean(key, kind.keys)}; "
        f"keys of kind {word} are {', '.join(kind.keys)}"
        for key in given
        if key not in kind.keys
    ]
    wrong += [
        f"{_line(item)}{place}: {short(key)} is missing" for key in kind.needed if key not in given
    ]
    if not wrong and "then" in given:
        given["then"] = _parts(item, "then", wrong, f"{place}: ")
    if not wrong:
        try:
            return kind.make(**given, **kind.implied)
        except SchemaError as error:
            # A sentence about a field begins with its name.
            wrong = [f"{_line(item, text.split()[0])}{place}: {text}" for text in error.problems]
    problems += wrong
    return None


class _Entry(dict[Any, Any]):
    """A mapping of a YAML file, with the line of each key."""

    lines: dict[Any, int]
    line: int


def _line(entry: Mapping[str, Any], key: Any = None) -> str:
    """Return the line of a key, or of its entry, as the beginning of a sentence. Empty for JSON."""
    return f"line {entry.lines.get(key, entry.line)}: " if isinstance(entry, _Entry) else ""


def _line_of_part(facts: Mapping[str, Any], text: str) -> str:
    """Return the line of the feature or rule that a sentence about a schema begins with."""
    found = re.match(r"(features|rules) ([0-9]+)", text)
    return (
        _line(facts[found[1]][int(found[2])]) if found else _line(facts, text.split(maxsplit=1)[0])
    )


# -- YAML and JSON ---------------------------------------------------------------------------------

_STR = "tag:yaml.org,2002:str"
_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "null": (r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    "int": (r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
        "-+.0123456789",
    ),
}


class _Loader(yaml.SafeLoader):
    """YAML 1.2 without aliases, tags and repeated keys.

    A plain word that is not ``true``, ``false``, ``null`` or a decimal number without leading zeros is
    text: ``no``, ``1:30``, ``017``, ``0x1F``, ``1_000``, ``2020-01-01``, ``.inf``.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012  (filled below)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias or getattr(event, "tag", None) not in (None, "!", _STR):
            word = f"*{event.anchor}" if is_alias else event.tag
            raise yaml.YAMLError(
                f"line {event.start_mark.line + 1} has {short(word)}; a schema has neither aliases nor "
                "tags, so write the value itself"
            )
        return super().compose_node(parent, index)

    def construct_entry(self, node: yaml.MappingNode) -> _Entry:
        entry = _Entry()
        entry.line, entry.lines = node.start_mark.line + 1, {}
        for key_node, value in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, Hashable):
                raise yaml.YAMLError(f"line {line}: a key must be a word")
            if key in entry:
                raise yaml.YAMLError(
                    f"line {line}: key {short(key)} occurs twice. Remove one of them"
                )
            entry[key] = self.construct_object(value, deep=True)
            entry.lines[key] = line
        return entry


_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_entry)


class _Dumper(yaml.SafeDumper):
    """YAML that readers of 1.1 and 1.2 take for the same values: quotes if in doubt."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar(_STR, text, style='"' if has_unseen(text) else None)


_Dumper.add_representer(str, _Dumper.represent_text)
for _kind, (_pattern, _first) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_pattern})\Z"), list(_first)
        )
# Other readers take these for true, false and octal numbers.
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"(?:0o[0-7]+|[yYnN])\Z"), list("0yYnN")
)


def _parse_yaml(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dictionary, or raise ValueError if a key occurs twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {short(key)} occurs twice. Remove one of them")
        found[key] = value
    return found


def _yaml_text(data: Any) -> str:
    text = yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=100,
    )
    return _escaped(text, lambda character: f"\\U{ord(character):08x}")


def _json_text(data: Any) -> str:
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return _escaped(text, lambda character: json.dumps(character)[1:-1])


def _escaped(text: str, code: Callable[[str], str]) -> str:
    """Escape invisible characters, which occur between double quotes only."""
    return UNSEEN.sub(lambda found: "\n" if found[0] == "\n" else code(found[0]), text)

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
from typing import TYPE_CHECKING, Any

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
    short,
    visible,
    whole,
)
from proplace.schema.fields import differs, fields_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

FORMAT = "proplace-schema-1"
_YAML = (".yaml", ".yml")
_KEYS = ("format", "features", "rules")


def load(path: Path) -> dict[str, Any]:
    """Read a schema file: its features and rules as plain dictionaries."""
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
        words = clipped(visible(" ".join(str(error).split())), 4 * VALUE)
        kind = "YAML" if suffix in _YAML else "JSON"
        raise SchemaError(f"{path.name}: not valid {kind}: {words}", name=path.name) from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        found = raw.get("format") if isinstance(raw, dict) else None
        raise SchemaError(
            f"{path.name}: not a schema file of this version: it must have 'format: {FORMAT}', "
            f"not {short(found)}",
            name=path.name,
        )
    for key in raw:
        if key not in _KEYS:
            hint = did_you_mean(key, _KEYS)
            raise SchemaError(
                f"{path.name}: {short(key)} is not a known key{hint}; "
                f"known keys are {', '.join(_KEYS)}",
                name=path.name,
            )
    if not isinstance(raw.get("features"), list):
        raise SchemaError(f"{path.name}: 'features' must be a list of features", name=path.name)
    rules = raw.get("rules")
    # An empty 'rules:' line reads as nothing, and means no rules.
    return {"features": raw["features"], "rules": [] if rules is None else rules}


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


def save(path: Path, features: Sequence[Any], rules: Sequence[Any]) -> None:
    """Write a schema file; it appears whole or not at all."""
    text = text_of(features, rules, _suffix(path))
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))


def text_of(features: Sequence[Any], rules: Sequence[Any], suffix: str) -> str:
    """Return the text of a schema file: YAML or JSON, by its suffix."""
    data: dict[str, Any] = {"format": FORMAT, "features": [plain(part) for part in features]}
    if rules:
        data["rules"] = [plain(part) for part in rules]
    return _yaml_text(data) if suffix in _YAML else _json_text(data)


def plain(value: Any) -> Any:
    """Write a feature or rule as a dictionary: its kind first, defaults left out."""
    fields = {
        field.name: _plain(getattr(value, field.name), labels=field.name in _LABELS)
        for field in fields_of(value)
        if differs(getattr(value, field.name), field.default)
    }
    return {"kind": value.kind, **fields}


_LABELS = ("levels", "categories", "values", "category", "when")


def _plain(value: Any, *, labels: bool) -> Any:
    """Write 17.0 as 17 where it is a number; a label stays what it is."""
    if dataclasses.is_dataclass(value):
        return plain(value)
    if isinstance(value, Mapping):
        return {key: _plain(item, labels=labels) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, labels=labels) for item in value]
    return whole(value) if isinstance(value, float) and not labels else value


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (*_YAML, ".json"):
        raise SchemaError(f"{path.name}: the name must end in .yaml, .yml or .json", name=path.name)
    return suffix


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

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if all(isinstance(key, Hashable) for key in keys):  # the base class rejects other keys
            _unique(
                [(key, None) for key in keys], f" in the entry at line {node.start_mark.line + 1}"
            )
        return super().construct_mapping(node, deep=deep)


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


def _unique(pairs: list[tuple[Any, Any]], where: str = "") -> dict[Any, Any]:
    """Return the pairs as a dictionary; raise ValueError if a key occurs twice."""
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {short(key)} occurs twice{where}")
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
    """Escape invisible characters; they stand between double quotes only."""
    return UNSEEN.sub(lambda found: "\n" if found[0] == "\n" else code(found[0]), text)

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
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import yaml

from proplace.errors import SchemaError
from proplace.files import whole_file
from proplace.schema._model import did_you_mean, fields_of, whole

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from pathlib import Path

FORMAT = "proplace-schema-1"
_YAML = (".yaml", ".yml")
_KEYS = ("format", "features", "rules")


def load(path: Path) -> dict[str, Any]:
    """Read a schema file: its features and rules as plain dictionaries."""
    suffix = _suffix(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SchemaError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"{path}: cannot be read ({error})") from None
    try:
        raw = _parse_yaml(text) if suffix in _YAML else _parse_json(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        words = " ".join(str(error).split())
        kind = "YAML" if suffix in _YAML else "JSON"
        raise SchemaError(f"{path.name}: not valid {kind}: {words}") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        found = raw.get("format") if isinstance(raw, dict) else None
        raise SchemaError(
            f"{path.name}: not a schema file of this version: it must have 'format: {FORMAT}', "
            f"not {found!r}"
        )
    for key in raw:
        if key not in _KEYS:
            hint = did_you_mean(key, _KEYS)
            raise SchemaError(
                f"{path.name}: {key!r} is not a known key{hint}; known keys are {', '.join(_KEYS)}"
            )
    if not isinstance(raw.get("features"), list):
        raise SchemaError(f"{path.name}: 'features' must be a list of features")
    # An empty 'rules:' line reads as nothing, and means no rules.
    return {"features": raw["features"], "rules": raw.get("rules") or []}


def save(path: Path, features: Sequence[Any], rules: Sequence[Any]) -> None:
    """Write a schema file; it appears whole or not at all."""
    text = text_of(features, rules, _suffix(path))
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


def text_of(features: Sequence[Any], rules: Sequence[Any], suffix: str) -> str:
    """Return the text of a schema file: YAML or JSON, by its suffix."""
    data: dict[str, Any] = {"format": FORMAT, "features": [plain(part) for part in features]}
    if rules:
        data["rules"] = [plain(part) for part in rules]
    if suffix in _YAML:
        return yaml.safe_dump(
            data, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
        )
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Write a feature or rule as a dictionary: its kind first, defaults left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: plain(getattr(value, field.name))
            for field in fields_of(value)
            if field.name != "kind" and getattr(value, field.name) != field.default
        }
        return {"kind": cast("Any", value).kind, **fields}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return whole(value) if isinstance(value, float) else value


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (*_YAML, ".json"):
        raise SchemaError(f"{path.name}: the name must end in .yaml, .yml or .json")
    return suffix


# -- parsers that do not guess ---------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML without its surprises: yes, no and dates are text, and no key may occur twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"key {key!r} occurs twice in the entry at line {line}")
        return super().construct_mapping(node, deep=deep)


_GUESSED = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _GUESSED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def _parse_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)  # noqa: S506 -- a SafeLoader: builds no objects


def _parse_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} occurs twice")
        found[key] = value
    return found

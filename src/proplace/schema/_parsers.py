"""YAML and JSON for files that people write by hand: parsers that do not guess, and their writers."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import yaml

from proplace.core import limits
from proplace.core.text import UNSEEN, has_unseen, short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NotParsed = (yaml.YAMLError, ValueError)
"""What the parsers raise about text that is not YAML or JSON."""


class TooMuch(Exception):
    """The file holds more than any schema needs."""


def _too_many() -> TooMuch:
    return TooMuch(
        f"it holds more than {limits.SCHEMA_NODES:,} values, those behind an alias counted each time "
        "it is used; write fewer features or categories"
    )


def _too_deep() -> TooMuch:
    return TooMuch(
        f"lists and mappings stand more than {limits.SCHEMA_DEPTH} deep inside each other; a schema "
        "needs few levels"
    )


class _Loader(yaml.SafeLoader):
    """YAML without its surprises.

    Plain words are read as YAML 1.2 reads them, and with one more doubt: what is not ``true``,
    ``false``, ``null`` or a decimal number without leading zeros is text. So ``no``, ``1:30``, ``017``,
    ``0x1F``, ``1_000``, ``2020-01-01`` and ``.inf`` stay what they are. No key may occur twice, there
    are no tags, and what aliases stand for is counted before it is built.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = self._level = 0
        self._sizes: dict[int, tuple[int, int]] = {}  # values and depth of each node that is whole

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._values += 1
        if self._values > limits.SCHEMA_NODES:
            raise _too_many()
        if self.check_event(yaml.AliasEvent):
            return super().compose_node(parent, index)
        tag = getattr(self.peek_event(), "tag", None)  # type: ignore[no-untyped-call]
        if tag not in (None, "!", _STR):
            raise yaml.YAMLError(f"a schema has no tags such as {short(tag)}; leave it out")
        self._level += 1
        if self._level > limits.SCHEMA_DEPTH:
            raise _too_deep()
        node = super().compose_node(parent, index)
        self._level -= 1
        assert node is not None  # noqa: S101  (there was an event)
        self._sizes[id(node)] = self._size(node)
        return node

    def _size(self, node: yaml.Node) -> tuple[int, int]:
        """How many values a node stands for, and how deep they are."""
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            parts = node.value
        try:
            sizes = [self._sizes[id(part)] for part in parts]
        except KeyError:
            line = node.start_mark.line + 1
            raise yaml.YAMLError(f"the entry at line {line} holds an alias of itself") from None
        count, depth = 1 + sum(n for n, _ in sizes), 1 + max((d for _, d in sizes), default=0)
        if count > limits.SCHEMA_NODES:
            raise _too_many()
        if depth > limits.SCHEMA_DEPTH:
            raise _too_deep()
        return count, depth

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for name, _ in node.value:
            key = self.construct_object(name, deep=True)
            if isinstance(key, Hashable) and key in seen:  # others are refused by the parser
                line = node.start_mark.line + 1
                raise yaml.YAMLError(f"key {short(key)} occurs twice in the entry at line {line}")
            if isinstance(key, Hashable):
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


_STR, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
_PLAIN = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "null": (r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    "int": (r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
        "-+.0123456789",
    ),
}
_Loader.yaml_implicit_resolvers = {"<": yaml.SafeLoader.yaml_implicit_resolvers["<"]}
for _kind, (_pattern, _first) in _PLAIN.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_pattern})\Z"), list(_first)
    )
# '<<' merges mappings where it is a key, and is a word elsewhere.
_Loader.add_constructor(_MERGE, lambda loader, node: str(node.value))


class _Dumper(yaml.SafeDumper):
    """YAML that every reader, of 1.1 or 1.2, takes for the same values: quotes where in doubt."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write a value again where it occurs again."""
        return True


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|0o[0-7]+|[yYnN])\Z"),
    list("-+.0123456789yYnN"),
)


def _quoted(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(_STR, text, style='"' if has_unseen(text) else None)


_Dumper.add_representer(str, _quoted)


def parse_yaml(text: str) -> Any:
    """Read YAML."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def parse_json(text: str) -> Any:
    """Read JSON."""
    try:
        raw = json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise _too_deep() from None
    level, values = [raw], 0
    for _ in range(limits.SCHEMA_DEPTH):
        values += len(level)
        if values > limits.SCHEMA_NODES:
            raise _too_many()
        level = [part for value in level for part in _parts(value)]
    if level:
        raise _too_deep()
    return raw


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {short(key)} occurs twice")
        found[key] = value
    return found


def yaml_text(data: Any) -> str:
    """Write YAML that our parser and any other takes for the same values."""
    text = yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=100,
    )
    return _spelt_out(text, lambda character: f"\\U{ord(character):08x}")


def json_text(data: Any) -> str:
    """Write JSON."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return _spelt_out(text, lambda character: json.dumps(character)[1:-1])


def _spelt_out(text: str, code: Callable[[str], str]) -> str:
    """Write what nobody would see by its number; it stands between double quotes only."""
    return UNSEEN.sub(lambda found: "\n" if found[0] == "\n" else code(found[0]), text)

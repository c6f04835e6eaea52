"""How much an ONNX file would become in memory, told before it is parsed.

Two bytes of a protobuf message can be a whole node, which takes a hundred in memory. So the fields of
the file are counted first, by their lengths alone; the arrays in it are one field each.
"""

from __future__ import annotations

from typing import Any

from proplace.core import limits
from proplace.core.errors import ModelFileError

_FIXED = {1: 8, 5: 4}  # bytes of a value, by its wire type
_VARINT, _MESSAGE = 0, 2


def check_fields(where: str, data: bytes, descriptor: Any) -> None:
    """Raise ModelFileError where a message has more fields than the limit.

    What is no message at all is left to the parser, which says so.
    """
    count = 0
    stack = [(0, len(data), descriptor)]
    while stack:
        place, end, kind = stack.pop()
        while place < end:
            count += 1
            if count > limits.GRAPH_FIELDS:
                raise ModelFileError(
                    f"{where}: the file has more than {limits.GRAPH_FIELDS:,} fields; models of "
                    "that many parts are not read"
                )
            tag, place = _varint(data, place, end)
            wire = tag & 7
            if wire == _VARINT:
                _, place = _varint(data, place, end)
            elif wire == _MESSAGE:
                length, place = _varint(data, place, end)
                field = kind.fields_by_number.get(tag >> 3)
                if field is not None and field.message_type is not None:
                    stack.append((place, min(end, place + length), field.message_type))
                place += length
            elif wire in _FIXED:
                place += _FIXED[wire]
            else:
                return


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while place < end:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128 or shift > 63:
            return value, place
        shift += 7
    return value, end

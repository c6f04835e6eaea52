"""The pickle inside a torch file, read as data.

``torch.save`` writes a state dict as a pickle beside the raw numbers. A pickle is a program for a
small machine; this one knows only the instructions that plain dictionaries, numbers, texts and
tensors need, makes no object of any class, imports nothing and calls nothing. So no version of torch
is trusted with the file, and a tensor is a description (where its numbers lie) until its size has
been checked.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class NotPlainError(Exception):
    """The pickle holds something else than dictionaries of tensors and plain values."""


@dataclass(frozen=True)
class Name:
    """Something that the pickle would import, as a name alone."""

    module: str
    name: str


@dataclass(frozen=True)
class Storage:
    """Numbers of one type in a member of the archive."""

    kind: str  # such as "FloatStorage"
    key: str
    count: int


@dataclass(frozen=True)
class Tensor:
    """A view of a storage."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class OtherTensor:
    """A tensor of a kind that has no plain storage: sparse, quantized, on the meta device."""

    how: str


def unpickled(data: bytes) -> Any:
    """Return what the pickle describes, tensors as descriptions; NotPlainError for anything else."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return machine.pop()
            machine.run(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise NotPlainError(f"a damaged pickle: {error}") from None
    raise NotPlainError("a damaged pickle: it has no end")


class _Mark:
    pass


_MARK = _Mark()


class _Machine:
    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, opcode: str, argument: Any) -> None:
        if opcode in _PUSHES:
            self._stack.append(argument)
        elif opcode in _MAKES:
            self._stack.append(_MAKES[opcode]())
        elif opcode in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self._stack[-1]
        elif opcode in ("BINGET", "LONG_BINGET"):
            self._stack.append(self._memo[argument])
        elif opcode in _STEPS:
            _STEPS[opcode](self, argument)
        elif opcode != "PROTO":
            raise NotPlainError(f"the instruction {opcode}")

    def pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise IndexError("an instruction finds nothing to work on")
        return value

    def _to_mark(self) -> list[Any]:
        values = []
        while (value := self._stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._stack.append(Name(module, name))

    def _tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._to_mark()))

    def _short_tuple(self, length: int) -> None:
        self._stack.append(tuple(self.pop() for _ in range(length))[::-1])

    def _set(self, pairs: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict:
            raise TypeError("a value is put where there is no dictionary")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if type(key) not in (str, int):  # others may take forever to hash
                raise NotPlainError(f"a dictionary with a key of type {type(key).__name__}")
            target[key] = value

    def _append(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise TypeError("a value is added where there is no list")
        target.extend(values)

    def _build(self, _: Any) -> None:
        # The state of an OrderedDict: versions of the modules, which change no number.
        self.pop()
        if type(self._stack[-1]) is not dict:
            raise NotPlainError("an object with a state of its own")

    def _storage(self, _: Any) -> None:
        match self.pop():
            case ("storage", Name("torch", kind), str(key), str(), int(count)):
                self._stack.append(Storage(kind, key, count))
            case _:
                raise NotPlainError("a reference to something that is no storage")

    def _call(self, _: Any) -> None:
        arguments, function = self.pop(), self.pop()
        match function, arguments:
            case Name("collections", "OrderedDict"), ():
                self._stack.append({})
            case (
                Name("torch._utils", "_rebuild_tensor_v2"),
                (Storage() as storage, int(offset), tuple(size), tuple(stride), *_),
            ) if all(type(n) is int for n in (*size, *stride)):
                self._stack.append(Tensor(storage, offset, size, stride))
            case (
                Name("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state"),
                (Tensor() as tensor, *_),
            ):
                self._stack.append(tensor)
            case Name("torch._utils", name), _ if name.startswith("_rebuild_"):
                self._stack.append(OtherTensor(name))
            case (Name("torch.serialization", "_get_layout"), (str(value),)) | (
                Name("torch", "Size"),
                (tuple(value),),
            ):
                self._stack.append(value)
            case Name(module, name), _:
                raise NotPlainError(f"an object of {module}.{name}")
            case _:
                raise NotPlainError("an object")


_PUSHES = frozenset({"BINFLOAT", "BININT", "BININT1", "BININT2", "BINUNICODE", "LONG1"})
_MAKES: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "MARK": lambda: _MARK,
    "NEWFALSE": lambda: False,
    "NEWTRUE": lambda: True,
    "NONE": lambda: None,
}
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "APPEND": lambda machine, _: machine._append([machine.pop()]),
    "APPENDS": lambda machine, _: machine._append(machine._to_mark()),
    "BINPERSID": _Machine._storage,
    "BUILD": _Machine._build,
    "GLOBAL": _Machine._global,
    "REDUCE": _Machine._call,
    "SETITEM": lambda machine, _: machine._set([machine.pop(), machine.pop()][::-1]),
    "SETITEMS": lambda machine, _: machine._set(machine._to_mark()),
    "TUPLE": _Machine._tuple,
    "TUPLE1": lambda machine, _: machine._short_tuple(1),
    "TUPLE2": lambda machine, _: machine._short_tuple(2),
    "TUPLE3": lambda machine, _: machine._short_tuple(3),
}

"""What a ``.keras`` file describes, read without Keras.

The file is a zip archive: ``config.json`` says which layers there are and how they are connected,
``model.weights.h5`` holds their numbers, ``assets`` the vocabularies that were learned. Keras would
build whatever objects the configuration names, at any depth. Here it is data: each layer becomes a
:class:`FileLayer` with settings and arrays, and models inside the model are unrolled into one list of
:class:`Node`. What only training needs (optimizers, losses, initializers, regularizers) is never
looked at.

A model in memory is described by a configuration of the same form, so it is read here too; see
:class:`Place` for where its numbers come from.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from proplace.core import limits
from proplace.core.errors import ModelFileError, ModelNotSupportedError, require
from proplace.loaders._archive import Archive
from proplace.loaders._files import check_layers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import numpy.typing as npt

    Values = npt.NDArray[Any]
    Key = tuple[str, int]  # a layer of one model by name, and which call of it

_ADVICE = (
    "not a .keras file, or a damaged one ({why}); save the model again with "
    "model.save('model.keras')"
)
# Where Keras says that its own classes come from, by what they are.
_FAMILIES = {
    "keras.layers": "layer",
    "keras.src.layers": "layer",
    "keras.ops": "operation",
    "keras.src.ops": "operation",
    "keras.models": "model",
    "keras.src.models": "model",
    "keras": "model",
}
_MODELS = ("Functional", "Sequential")
# Keras files weights under the class of their layer, in its own spelling.
_GROUPS = {
    "BatchNormalization": "batch_normalization",
    "Dense": "dense",
    "Embedding": "embedding",
    "Functional": "functional",
    "IntegerLookup": "integer_lookup",
    "Normalization": "normalization",
    "Sequential": "sequential",
    "StringLookup": "string_lookup",
}
LOOKUPS = ("StringLookup", "IntegerLookup")
_MOST_ARRAYS = 4  # of one plain layer: those of batch normalization
_COMPLEX_OR_ODD = "of type {dtype}; only real numbers, stored plainly, are read"


@dataclass(frozen=True, eq=False)
class FileLayer:
    """One layer, or one operation of ``keras.ops``, as the file describes it."""

    kind: str
    operation: bool
    name: str
    where: str  # for messages
    settings: Mapping[str, Any]
    weights: tuple[Values, ...] = ()
    vocabulary: tuple[Any, ...] = ()  # of a lookup, as it is kept: special tokens may be in front
    path: tuple[str, ...] = ()  # names of the models that it is in, and its own


@dataclass(frozen=True, eq=False)
class Node:
    """One use of a layer: on the values of which earlier nodes. Inputs have no sources."""

    layer: FileLayer
    sources: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class FileModel:
    """A model as a list of nodes, each behind its sources, and which of them are the outputs."""

    name: str
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]


def read_model(path: Path) -> FileModel:
    """Read the description of a model from a ``.keras`` file."""
    with Archive(path, _ADVICE) as archive:
        text = archive.read("config.json", limits.CONFIG_BYTES)
        weights = archive.read("model.weights.h5")
        assets = {
            name: archive.read(name, limits.CONFIG_BYTES)
            for name in archive.names
            if name.startswith("assets/") and name.endswith("/vocabulary.txt")
        }
    h5py = require("h5py", "keras", f"reading the file {path.name}")
    try:
        config = json.loads(text)
        with h5py.File(io.BytesIO(weights), "r") as file:
            place = _Folder(_Store(path, h5py, file), assets, "")
            return Reader(path.name, f"{path.name}: ", place).model(config)
    except (ModelFileError, ModelNotSupportedError):
        raise
    except (OSError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError) as error:
        # A description or a store that Keras does not write.
        why = _ADVICE.format(why=str(error) or type(error).__name__)
        raise ModelFileError(f"{path.name}: {why}") from None


@dataclass(frozen=True, eq=False)
class Entry:
    """A serialized object: its class, its name, and where to find the rest."""

    kind: str
    family: str
    name: str
    where: str
    config: Mapping[str, Any]
    raw: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class _Step:
    part: FileLayer | _Submodel
    key: Key
    sources: tuple[Key, ...]
    names: tuple[str, ...] = ()  # of the inputs that the sources are for, where they are named


@dataclass(frozen=True, eq=False)
class _Submodel:
    name: str
    steps: tuple[_Step, ...]
    inputs: tuple[tuple[Key, FileLayer | None], ...]
    outputs: tuple[Key, ...]


class Place(Protocol):
    """Where the numbers and words of a model's layers are kept; ``group`` is Keras' own filing."""

    def inside(self, entry: Entry, group: str) -> Place:
        """Return the place of a model inside the model."""

    def weights(self, entry: Entry, group: str) -> tuple[Values, ...]:
        """Return the arrays of a layer, in the order in which Keras keeps them."""

    def vocabulary(self, entry: Entry, group: str) -> list[Any]:
        """Return the vocabulary of a lookup."""

    def check_order(
        self,
        entry: Entry,
        parts: Mapping[str, Any],
        ordered: tuple[_Step, ...],
        outputs: tuple[Key, ...],
    ) -> None:
        """Raise unless every layer is sure to get its own numbers."""


class Reader:
    """Turns a configuration into a list of nodes.

    Parameters
    ----------
    title, prefix
        What to call the model, and what to put in front of a layer's name, in messages.
    place
        Where its numbers are.
    """

    def __init__(self, title: str, prefix: str, place: Place) -> None:
        self._title = title
        self._prefix = prefix
        self._place = place
        self._layers = 0

    def model(self, config: Any) -> FileModel:
        entry = self._entry(config)
        if entry.kind not in _MODELS:
            raise ModelNotSupportedError(
                f"{entry.where} is no model of known layers; build it with keras.Sequential or the "
                "functional API and save it again"
            )
        model = self._submodel(entry, self._place, ())
        unrolled = _Unrolled(self._title)
        sources = []
        for _, layer in model.inputs:
            if layer is None:
                raise ModelNotSupportedError(
                    f"{entry.where} does not say the shape of its input; give it a keras.Input"
                )
            sources.append(unrolled.add(layer, ()))
        outputs = unrolled.run(model, tuple(sources))
        return FileModel(model.name, tuple(unrolled.nodes), outputs)

    # -- entries -------------------------------------------------------------------------------

    def _entry(self, raw: Any) -> Entry:
        if not isinstance(raw, dict) or not isinstance(raw.get("config"), dict):
            raise ValueError("its configuration is incomplete")
        kind, module, registered = (raw.get(k) for k in ("class_name", "module", "registered_name"))
        name = raw["config"].get("name", raw.get("name"))
        where = f"{self._prefix}layer {str(name)[:200]!r} ({str(kind)[:200]})"
        if kind in ("Lambda", "function"):
            raise holds_code(where)
        family = _family(module)
        if not isinstance(kind, str) or family is None or registered not in (None, kind):
            raise foreign(where, f"{str(module)[:200]}, {str(registered)[:200]}")
        if not isinstance(name, str) or not name:
            raise ValueError(f"a layer of class {kind} has no name")
        self._layers += 1
        check_layers(self._title, self._layers)
        return Entry(kind, family, name, where, raw["config"], raw)

    def _parts(
        self, entries: list[Entry], place: Place, path: tuple[str, ...]
    ) -> dict[str, FileLayer | _Submodel]:
        """Return the layers of a model by name, with the numbers that are filed under them."""
        parts: dict[str, FileLayer | _Submodel] = {}
        used: dict[str, int] = {}
        for entry in entries:
            if entry.name in parts:
                raise ValueError(f"two layers are called {entry.name!r}")
            group = ""
            if entry.family != "operation" and entry.kind in _GROUPS:
                group = _GROUPS[entry.kind]
                count = used[group] = used.get(group, -1) + 1
                group = f"{group}_{count}" if count else group
            if entry.family == "model":
                inner = (*path, entry.name)
                parts[entry.name] = self._submodel(entry, place.inside(entry, group), inner)
                continue
            lookup = entry.family == "layer" and entry.kind in LOOKUPS
            parts[entry.name] = FileLayer(
                entry.kind,
                entry.family == "operation",
                entry.name,
                entry.where,
                entry.config,
                place.weights(entry, group) if group and not lookup else (),
                tuple(place.vocabulary(entry, group)) if lookup else (),
                (*path, entry.name),
            )
        return parts

    # -- models --------------------------------------------------------------------------------

    def _submodel(self, entry: Entry, place: Place, path: tuple[str, ...]) -> _Submodel:
        if entry.kind == "Sequential":
            return self._sequential(entry, place, path)
        if entry.kind == "Functional":
            return self._functional(entry, place, path)
        raise ModelNotSupportedError(
            f"{entry.where} is a model with its own call(), whose layers cannot be followed; "
            "build it with keras.Sequential or the functional API"
        )

    def _sequential(self, entry: Entry, place: Place, path: tuple[str, ...]) -> _Submodel:
        entries = [self._entry(raw) for raw in _list(entry.config["layers"])]
        parts = self._parts(entries, place, path)
        first: FileLayer | None = None
        steps: list[_Step] = []
        key: Key = ("", 0)
        for name, part in parts.items():
            if isinstance(part, FileLayer) and part.kind == "InputLayer" and not steps:
                first = part
                continue
            steps.append(_Step(part, (name, 0), (key,)))
            key = (name, 0)
        return _Submodel(entry.name, tuple(steps), ((("", 0), first or _input_of(entry)),), (key,))

    def _functional(self, entry: Entry, place: Place, path: tuple[str, ...]) -> _Submodel:
        entries = [self._entry(raw) for raw in _list(entry.config["layers"])]
        parts = self._parts(entries, place, path)
        steps: list[_Step] = []
        inputs: dict[Key, FileLayer | None] = {}
        for inner in entries:
            part = parts[inner.name]
            calls = _list(inner.raw.get("inbound_nodes", []))
            if inner.kind == "InputLayer" and isinstance(part, FileLayer):
                inputs[inner.name, 0] = part
            check_layers(self._title, len(steps) + len(calls))
            for i, call in enumerate(calls):
                sources = _sources(inner, call)
                names = tuple(sources) if isinstance(sources, dict) else ()
                keys = tuple(sources.values()) if isinstance(sources, dict) else sources
                steps.append(_Step(part, (inner.name, i), keys, names))
        wanted = tuple(_input_keys(entry))
        if set(wanted) != set(inputs) or len(wanted) != len(inputs):
            raise ValueError(f"the inputs of model {entry.name!r} are not those of its layers")
        outputs = tuple(_keys(entry.config["output_layers"]))
        ordered = _in_order(entry, inputs, steps)
        place.check_order(entry, parts, ordered, outputs)
        return _Submodel(entry.name, ordered, tuple((k, inputs[k]) for k in wanted), outputs)


@dataclass
class _Unrolled:
    """Models inside the model, written out call by call."""

    title: str
    nodes: list[Node] = field(default_factory=list)
    calls: int = 0

    def add(self, layer: FileLayer, sources: tuple[int, ...]) -> int:
        self.nodes.append(Node(layer, sources))
        return len(self.nodes) - 1

    def run(self, model: _Submodel, sources: tuple[int, ...]) -> tuple[int, ...]:
        if len(sources) != len(model.inputs):
            raise ValueError(f"model {model.name!r} is called with {len(sources)} values")
        values: dict[Key, int] = {
            key: source for (key, _), source in zip(model.inputs, sources, strict=True)
        }
        for step in model.steps:
            self.calls += 1
            check_layers(self.title, self.calls)
            given = tuple(values[key] for key in step.sources)
            if isinstance(step.part, FileLayer):
                if step.names:
                    raise ModelNotSupportedError(
                        f"{step.part.where} is called on a dictionary; call it on a list of values"
                    )
                values[step.key] = self.add(step.part, given)
                continue
            given = _by_name(step, given, step.part)
            outputs = self.run(step.part, given)
            if len(outputs) != 1:
                raise ModelNotSupportedError(
                    f"{self.title}: model {step.part.name!r} inside the model has "
                    f"{len(outputs)} outputs; it must have one"
                )
            values[step.key] = outputs[0]
        return tuple(values[key] for key in model.outputs)


def _by_name(step: _Step, given: tuple[int, ...], model: _Submodel) -> tuple[int, ...]:
    """Put the values that a model is called on in the order of its inputs."""
    if not step.names:
        return given
    named = dict(zip(step.names, given, strict=True))
    if set(named) != {name for (name, _), _ in model.inputs}:
        raise ValueError(f"model {model.name!r} is called on other names than those of its inputs")
    return tuple(named[name] for (name, _), _ in model.inputs)


def holds_code(where: str) -> ModelNotSupportedError:
    """Return the refusal of a layer made of Python code."""
    return ModelNotSupportedError(
        f"{where} holds Python code, which is never run; replace it by Dense, ReLU, "
        "Normalization or Rescaling layers and save the model again"
    )


def foreign(where: str, origin: str) -> ModelNotSupportedError:
    """Return the refusal of a class that is not one of Keras' own."""
    return ModelNotSupportedError(
        f"{where} is a class of your own or of another package ({origin}), whose code is never "
        "run; build the model of Keras' own layers"
    )


def _family(module: Any) -> str | None:
    if not isinstance(module, str):
        return None
    return next(
        (
            family
            for prefix, family in _FAMILIES.items()
            if module == prefix or (prefix != "keras" and module.startswith(f"{prefix}."))
        ),
        None,
    )


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("its configuration has a value where a list must be")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("its configuration has a value where a mapping must be")
    return value


def _keys(value: Any) -> Iterator[Key]:
    """Yield layers with the number of the call, from one such entry or from several of them."""
    match value:
        case [str(), int(), 0]:
            values = [value]
        case list():
            values = value
        case dict():
            values = list(value.values())
        case _:
            raise ValueError("inputs or outputs are named in an unknown way")
    for inner in values:
        match inner:
            case [str(name), int(call), 0]:
                yield name, call
            case _:
                raise ValueError("inputs or outputs are named in an unknown way")


def _input_keys(entry: Entry) -> Iterator[Key]:
    """Yield the inputs of a model; a dictionary names each by the layer that it is."""
    inputs = entry.config["input_layers"]
    if not isinstance(inputs, dict):
        yield from _keys(inputs)
        return
    for name, value in inputs.items():
        match value:
            case [str(layer), 0, 0] if layer == name:
                yield name, 0
            case _:
                raise ValueError(f"the inputs of model {entry.name!r} are named in an unknown way")


def _off(value: Any) -> bool:
    """Whether an option is switched off, for each of several values alike."""
    if isinstance(value, dict) and "class_name" not in value:
        return all(map(_off, value.values()))
    if isinstance(value, list):
        return all(map(_off, value))
    return value is None or value is False


def _sources(entry: Entry, call: Any) -> tuple[Key, ...] | dict[str, Key]:
    """Return the values that a layer is called on; anything but values is refused."""
    arguments, options = _list(call["args"]), _mapping(call["kwargs"])
    odd = {key: value for key, value in options.items() if not _off(value)}
    if len(arguments) != 1 or odd:
        raise ModelNotSupportedError(
            f"{entry.where} is called with {len(arguments)} arguments and the options "
            f"{sorted(map(str, odd))}; only layers that are called on one value are read"
        )
    value = arguments[0]
    if isinstance(value, dict) and "class_name" not in value:
        return {name: _source(entry, inner) for name, inner in value.items()}
    return tuple(_source(entry, v) for v in (value if isinstance(value, list) else [value]))


def _source(entry: Entry, value: Any) -> Key:
    match value:
        case {
            "class_name": "__keras_tensor__",
            "config": {"keras_history": [str(name), int(index), 0]},
        }:
            return name, index
    raise ModelNotSupportedError(
        f"{entry.where} is called on something else than the value of a layer; use Rescaling or "
        "Normalization for constants"
    )


def _in_order(entry: Entry, inputs: Mapping[Key, Any], steps: list[_Step]) -> tuple[_Step, ...]:
    """Put each call behind those whose values it needs."""
    known, waiting, ordered = set(inputs), steps, []
    while waiting:
        later = []
        for step in waiting:
            if all(key in known for key in step.sources):
                known.add(step.key)
                ordered.append(step)
            else:
                later.append(step)
        if len(later) == len(waiting):
            raise ValueError(f"the layers of model {entry.name!r} wait for each other")
        waiting = later
    return tuple(ordered)


def _check_used(
    entry: Entry,
    parts: Mapping[str, Any],
    ordered: tuple[_Step, ...],
    outputs: tuple[Key, ...],
) -> None:
    """Refuse a model whose weights Keras itself might file in another order.

    Keras numbers the weights by the order in which the layers follow each other. It writes the
    layers in that order too, and leaves out those that lead to no output.
    """
    sources = {step.key: step.sources for step in ordered}
    needed, stack = set(), list(outputs)
    while stack:
        key = stack.pop()
        if key not in needed:
            needed.add(key)
            stack += sources.get(key, ())
    if len(ordered) + sum(key not in sources for key in needed) != len(needed):
        raise ValueError(f"layers of model {entry.name!r} lead to no output")
    first_use = dict.fromkeys(step.key[0] for step in ordered)
    if list(first_use) != [name for name in parts if name in first_use]:
        raise ValueError(f"the layers of model {entry.name!r} are not in their order")


def _input_of(entry: Entry) -> FileLayer | None:
    """Return the input of a Sequential that was built by calling it."""
    build = entry.raw.get("build_config")
    shape = entry.config.get("build_input_shape")
    if shape is None and isinstance(build, dict):
        shape = build.get("input_shape")
    if shape is None:
        return None
    settings = {"batch_shape": shape, "name": "input"}
    return FileLayer("InputLayer", False, "input", f"{entry.where}: its input", settings)


@dataclass(frozen=True, eq=False)
class _Folder:
    """A folder of a file's weights and assets."""

    store: _Store
    assets: Mapping[str, bytes]
    folder: str

    def inside(self, entry: Entry, group: str) -> _Folder:
        return _Folder(self.store, self.assets, self._path(group))

    def weights(self, entry: Entry, group: str) -> tuple[Values, ...]:
        return self.store.weights(self._path(group), entry)

    def vocabulary(self, entry: Entry, group: str) -> list[Any]:
        kept = entry.config.get("vocabulary")
        if kept is not None:
            return _list(kept)
        text = self.assets.get(f"assets/{self._path(group)}vocabulary.txt")
        if text is None:
            raise ModelFileError(
                f"{entry.where} has no vocabulary in the file; call adapt() or set_vocabulary() and "
                "save the model again"
            )
        words = text.decode().splitlines()
        while words and not words[-1]:
            words.pop()
        return [int(word) for word in words] if entry.kind == "IntegerLookup" else words

    def check_order(
        self,
        entry: Entry,
        parts: Mapping[str, Any],
        ordered: tuple[_Step, ...],
        outputs: tuple[Key, ...],
    ) -> None:
        _check_used(entry, parts, ordered, outputs)

    def _path(self, group: str) -> str:
        return f"{self.folder}layers/{group}/"


class _Store:
    """The numbers of the layers, in an HDF5 file in memory."""

    def __init__(self, path: Path, h5py: Any, file: Any) -> None:
        self._path = path
        self._h5py = h5py
        self._file = file

    def weights(self, folder: str, entry: Entry) -> tuple[Values, ...]:
        """Return the numbers of a layer in the order in which Keras keeps them."""
        group = self._file
        for name in [*folder.strip("/").split("/"), "vars"]:
            group = self._child(group, name, self._h5py.Group)
            if group is None:
                raise ModelFileError(
                    f"{entry.where} has no weights in the file (shared with another model?); save "
                    "the model again with each layer in one model only"
                )
        called = group.attrs.get("name")
        if isinstance(called, str) and called != entry.name:
            raise ModelFileError(
                f"{entry.where} would get the weights of layer {called[:200]!r}: a damaged file. "
                "Save the model again"
            )
        names = [str(i) for i in range(len(group))]
        if len(names) > _MOST_ARRAYS or set(group) != set(names):
            raise ModelNotSupportedError(
                f"{entry.where} has {len(group)} arrays of weights, more than a plain layer; give "
                "the model from before quantization or adapters"
            )
        return tuple(self._array(entry, group, name) for name in names)

    def _child(self, group: Any, name: str, kind: Any) -> Any:
        link = group.get(name, getlink=True)
        if link is None:
            return None
        # Other links lead out of the file.
        if not isinstance(link, self._h5py.HardLink) or not isinstance(group[name], kind):
            raise ValueError(f"{name!r} in its weights is not what Keras writes")
        return group[name]

    def _array(self, entry: Entry, group: Any, name: str) -> Values:
        where = f"{entry.where}: array {name} of its weights"
        dataset = self._child(group, name, self._h5py.Dataset)
        if dataset is None:  # though the group names it
            raise ModelFileError(f"{where} is missing; save the model again")
        if dataset.shape is None or dataset.external or dataset.is_virtual or dataset.chunks:
            raise ModelFileError(f"{where} is not stored plainly in the file; save the model again")
        half = dataset.attrs.get("dtype") == "bfloat16" and dataset.dtype.itemsize == 2
        if dataset.dtype.kind not in "fiu" and not half:
            raise ModelNotSupportedError(
                f"{where} is {_COMPLEX_OR_ODD.format(dtype=dataset.dtype)}"
            )
        # A dataset may declare a shape without storing a number of it.
        if dataset.id.get_storage_size() != dataset.nbytes:
            raise ModelFileError(f"{where} does not have the bytes of its shape; save it again")
        array: Values = np.asarray(dataset[()])
        if half:  # the upper half of a float32
            array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return array

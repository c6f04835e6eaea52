"""Weights in ``.safetensors`` files, read once more with numpy alone."""

from __future__ import annotations

import json
import re

import numpy as np

from fuzz.mutate import change_tree, damaged, json_text, some
from fuzz.reader import Reader
from proplace.network import Network

_TYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
_NAMES = (
    "0.weight",
    "0.bias",
    "2.weight",
    "2.bias",
    "1.weight",
    "10.weight",
    "weight",
    "a.b.weight",
    "²",
    "x.3",
)


class SafetensorsFiles(Reader):
    """Files of named tensors."""

    name = "safetensors"
    suffix = ".safetensors"

    def prepare(self, folder):
        rng = np.random.default_rng(0)
        first, last = rng.normal(size=(3, 2)), rng.normal(size=(1, 3))
        named = [
            {"0.weight": first, "0.bias": np.ones(3), "2.weight": last, "2.bias": np.zeros(1)},
            {"enter.weight": first.astype("f4"), "leave.weight": last.astype("f4")},
            {"fc.weight": last.astype("f2"), "fc.bias": np.ones(1, "f2")},
        ]
        self._seeds = [_file(tensors) for tensors in named]
        self._seeds.append(
            _file({"0.weight": (last.astype("<f4").view("<u4") >> 16).astype("<u2")})
        )
        self._parts = [_parts(seed) for seed in self._seeds]
        self._trees = [json.loads(header) for header, _ in self._parts]

    def seeds(self):
        return self._seeds

    def make(self, rng):
        header, body = rng.choice(self._parts)
        tree = json.loads(header)
        for _ in range(some(rng)):
            kind = rng.randrange(8)
            if kind <= 3:
                change_tree(rng, tree, self._trees)
            elif kind == 4 and tree:
                tree[rng.choice(_NAMES)] = tree.pop(rng.choice(list(tree)))
            elif kind == 5:
                body = damaged(rng, body)
            elif kind == 6 and tree:
                _move(rng, rng.choice(list(tree.values())), len(body))
            else:
                many = rng.choice((3, 12, 300))
                entry = {"dtype": "F64", "shape": [2, 2], "data_offsets": [0, 32]}
                tree |= {
                    rng.choice((f"{chr(97 + i % 26)}{i}.weight", f"{i}.weight")): entry
                    for i in range(many)
                }
        text = json_text(rng, tree)
        length = rng.choice(
            (len(text),) * 12
            + (0, 1, max(0, len(text) - 1), len(text) + 1, 2**31, 2**63, 2**64 - 1)
        )
        data = length.to_bytes(8, "little") + text + body
        return damaged(rng, data, self._seeds) if rng.random() < 0.1 else data

    def read(self, path, data):
        return Network.load(path, activation="relu")

    def judge(self, data, network):
        header, body = _parts(data)
        tensors = {
            name: _tensor(entry, body)
            for name, entry in json.loads(header).items()
            if name != "__metadata__"
        }
        weights = [name for name in tensors if name.rpartition(".")[2] == "weight"]
        if len(weights) != len(network.layers):
            return "not as many layers as weights"
        if len({re.sub(r"\d+", "#", name) for name in weights}) == 1:
            weights.sort(key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
        left = list(weights)
        for layer, name in zip(network.layers, weights, strict=True):
            fits = [other for other in left if np.array_equal(tensors[other], layer.W)]
            if not fits or (
                len(set(map(len, weights))) == 1 and "0.weight" in weights and fits[0] != name
            ):
                return f"a layer that is not in the file at its place: {name}"
            left.remove(fits[0])
            bias = tensors.get(fits[0].removesuffix("weight") + "bias")
            if (bias is None) != (layer.b is None) or (
                bias is not None and not np.array_equal(bias, layer.b)
            ):
                return f"another bias than in the file: {name}"
        return None


def _file(tensors):
    header, body = {}, b""
    for name, array in tensors.items():
        kind = next(key for key, dtype in _TYPES.items() if dtype == array.dtype)
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + array.nbytes],
        }
        body += array.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def _parts(data):
    length = int.from_bytes(data[:8], "little")
    return data[8 : 8 + length], data[8 + length :]


def _tensor(entry, body):
    start, end = entry["data_offsets"]
    array = np.frombuffer(body[start:end], dtype=_TYPES[entry["dtype"]])
    if entry["dtype"] == "BF16":
        array = (array.astype("<u4") << 16).view("<f4")
    return array.reshape(entry["shape"]).astype(np.float64)


def _move(rng, entry, size):
    """Other places or sizes for a tensor."""
    if not isinstance(entry, dict):
        return
    kind = rng.randrange(3)
    if kind == 0:
        entry["data_offsets"] = sorted(rng.randrange(size + 9) for _ in range(2))
    elif kind == 1:
        entry["shape"] = rng.choice(
            ([], [0], [0, 2**60], [2**31, 2**31], [1, 3], [3, 1], [2, 3], [-1, -3], [1] * 70)
        )
    else:
        entry["dtype"] = rng.choice(("F64", "F32", "F16", "BF16", "I64", "BOOL", "F8_E4M3", "F128"))

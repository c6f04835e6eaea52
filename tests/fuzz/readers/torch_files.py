"""Weights written by ``torch.save``: a zip with a pickle in it, which must never run."""

from __future__ import annotations

import io
import pickle
import pickletools
import struct

import numpy as np

from fuzz.mutate import NUMBERS, WORDS, damaged, some
from fuzz.reader import Reader
from fuzz.seeds import seeds_of
from fuzz.zips import Member, archive_of, bombs, change_archive, members_of
from proplace.network import Network

_GLOBALS = (
    *(
        "os system",
        "builtins eval",
        "builtins exec",
        "builtins getattr",
        "posix system",
        "subprocess Popen",
    ),
    *(
        "collections OrderedDict",
        "collections Counter",
        "collections defaultdict",
        "numpy.core.multiarray scalar",
    ),
    *(
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_parameter",
        "torch._utils _rebuild_qtensor",
    ),
    *(
        "torch._utils _rebuild_sparse_tensor",
        "torch._utils _rebuild_meta_tensor_no_storage",
        "torch device",
    ),
    *(
        "torch FloatStorage",
        "torch DoubleStorage",
        "torch HalfStorage",
        "torch BFloat16Storage",
        "torch Size",
    ),
    *(
        "torch QInt8Storage",
        "torch BoolStorage",
        "torch ComplexFloatStorage",
        "torch.storage UntypedStorage",
    ),
    *(
        "torch._tensor _rebuild_from_type_v2",
        "torch Tensor",
        "torch.nn.parameter Parameter",
        "torch.jit load",
    ),
    *(
        "torch._utils _rebuild_device_tensor_from_numpy",
        "torch.hub load",
        "torch load",
        "pickle loads",
    ),
)
_LARGEST = 2**31


class _Payload:
    def __reduce__(self):
        import os

        return os.system, ("true",)


class TorchFiles(Reader):
    """State dicts."""

    name = "torch"
    suffix = ".pt"

    def prepare(self, folder):
        import torch

        self._torch = torch
        torch.set_num_threads(1)
        self._seeds = seeds_of("torch")
        self._files = [members_of(seed) for seed in self._seeds]
        more = []
        weight = torch.arange(6.0).reshape(2, 3)
        for content in (
            {"0.weight": weight.T, "0.bias": torch.zeros(3)},
            {"0.weight": weight.expand(2, 3)},
            {"0.weight": torch.nn.Parameter(weight)},
            {"0.weight": weight.to_sparse()},
            {"0.weight": torch.zeros(1).expand(3, 2)},
            {"state_dict": {"0.weight": weight}, "epoch": 3},
            [weight],
        ):
            whole = io.BytesIO()
            torch.save(content, whole)
            more.append(whole.getvalue())
        self._files += [members_of(data) for data in more]
        old = io.BytesIO()
        torch.save({"0.weight": weight}, old, _use_new_zipfile_serialization=False)
        self._pickles = [
            old.getvalue(),
            pickle.dumps(_Payload(), protocol=2),
            pickle.dumps({"a": _Payload()}),
        ]

    def seeds(self):
        return self._seeds

    def kept(self):
        return [*super().kept(), *bombs(self._files[0])]

    def make(self, rng):
        files = list(rng.choice(self._files))
        kind = rng.randrange(12)
        if kind == 0:
            return damaged(rng, rng.choice(self._seeds), self._seeds)
        if kind == 1:
            data = rng.choice(self._pickles)
            return data + _archive(files) if rng.random() < 0.6 else damaged(rng, data)
        for _ in range(some(rng)):
            i = rng.randrange(len(files)) if rng.random() < 0.4 else 0
            name, data = files[i]
            if name.endswith("data.pkl"):
                files[i] = name, _change_pickle(rng, data)
            elif rng.random() < 0.2:
                files[i] = (
                    rng.choice(
                        (name + "x", "a/data.pkl", "a/constants.pkl", "a/code/x.py", "b/data/0")
                    ),
                    data,
                )
            else:
                files[i] = name, damaged(rng, data)
        return change_archive(rng, files, align=64) if kind <= 5 else _archive(files)

    def read(self, path, data):
        return Network.load(path, activation="relu")

    def judge(self, data, network):
        try:
            content = self._torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception:
            return None
        weights = [str(name) for name in content if str(name).rpartition(".")[2] == "weight"]
        content = {str(name): value for name, value in content.items()}
        if len(weights) != len(network.layers):
            return "not as many layers as weights"
        for layer, name in zip(network.layers, weights, strict=True):
            bias = content.get(name.removesuffix("weight") + "bias")
            theirs = content[name].detach().double().numpy()
            if not np.array_equal(theirs, layer.W):
                return f"other weights than torch reads: {name}"
            if (bias is None) != (layer.b is None) or (
                bias is not None and not np.array_equal(bias.detach().double().numpy(), layer.b)
            ):
                return f"another bias than torch reads: {name}"
        return None


def _archive(files):
    return archive_of([Member.of(name, data) for name, data in files], align=64)


def _change_pickle(rng, data):
    """A pickle with an argument, an operation or a name exchanged."""
    try:
        ops = list(pickletools.genops(data))
    except (ValueError, IndexError, UnicodeError):
        return damaged(rng, data)
    ends = [place for _, _, place in ops[1:]] + [len(data)]
    n = rng.randrange(len(ops))
    wanted = rng.choice(("INT", "UNICODE", "GLOBAL", ""))
    if fits := [i for i, (op, _, _) in enumerate(ops) if wanted in op.name]:
        n = rng.choice(fits)
    op, argument, start = ops[n]
    end = ends[n]
    if "GLOBAL" in op.name:
        new = f"c{rng.choice(_GLOBALS).replace(' ', chr(10))}\n".encode()
    elif "UNICODE" in op.name:
        text = rng.choice((*WORDS, "cpu", "cuda", "meta", "0", "1", "9", str(argument) + "x"))
        text = text.encode("utf-8", "surrogatepass")
        new = b"X" + struct.pack("<I", rng.choice((len(text),) * 9 + (2**31,))) + text
    elif "INT" in op.name and rng.random() < 0.9:
        value = rng.choice((*NUMBERS, argument, *range(-3, 7)))
        value = int(value) if isinstance(value, int) or np.isfinite(value) else 0
        new = b"J" + struct.pack("<i", value) if -_LARGEST <= value < _LARGEST else _long(value)
    elif rng.random() < 0.5:
        new = b""
    elif rng.random() < 0.5:
        new = data[start:end] * rng.choice((2, 3, 500))
    else:
        other = rng.randrange(len(ops))
        new = data[ops[other][2] : ends[other]]
    return data[:start] + new + data[end:]


def _long(value):
    packed = pickle.encode_long(value)
    if len(packed) < 256:
        return b"\x8a" + bytes([len(packed)]) + packed
    return b"\x8b" + struct.pack("<i", len(packed)) + packed

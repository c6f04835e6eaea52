"""Write the seeds that real frameworks make: ``python tests/fuzz/make_seeds.py``.

They are kept under ``seeds/``, so that a fuzzer starts without the frameworks that its reader does not
need. Run it again when a framework writes another format, and look at the difference.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

SEEDS = Path(__file__).parent / "seeds"


def onnx_graphs(folder):
    import onnx
    import torch
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1), nn.Sigmoid()).eval()
    torch.onnx.export(
        model, (torch.zeros(3, 2),), folder / "torch.onnx", dynamo=True, external_data=False
    )
    exported = onnx.load(folder / "torch.onnx")
    del exported.metadata_props[:]
    for node in exported.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save(exported, folder / "torch.onnx")

    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)).astype(np.float32)
    for classes in (2, 3):
        y = (X[:, 0] * 1.5 + X[:, 1] > 0).astype(int) + (X[:, 0] > 0.8) * (classes == 3)
        for name, last in (
            ("mlp", MLPClassifier((3,), max_iter=20, random_state=0)),
            ("linear", LogisticRegression()),
        ):
            fitted = make_pipeline(StandardScaler(), last).fit(X, y)
            graph = to_onnx(fitted, X[:1], options={id(last): {"zipmap": classes == 2}})
            (folder / f"{name}{classes}.onnx").write_bytes(graph.SerializeToString())


if __name__ == "__main__":
    place = SEEDS / "onnx"
    place.mkdir(parents=True, exist_ok=True)
    onnx_graphs(place)

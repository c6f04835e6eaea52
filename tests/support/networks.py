"""The network of a model of numbers, evaluated on rows of the table."""

from __future__ import annotations

import proplace as pp


class NetworkOf:
    """The network of a model, on rows that the model encodes first."""

    def __init__(self, source):
        self.model = pp.Model.of(source)
        self.network = self.model.network

    def __getattr__(self, name):
        return getattr(self.network, name)

    @property
    def inputs(self):
        return len(self.model.columns)

    def logits(self, X):
        return self.network.logits(self.model.encode(X))

    def predict(self, X):
        return self.network.predict(self.model.encode(X))

    def predict_proba(self, X):
        return self.network.predict_proba(self.model.encode(X))

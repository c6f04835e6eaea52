"""Training of a scikit-learn network within a shift set."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.neural_network import MLPClassifier

from proplace.core.errors import InputError, ModelNotSupportedError
from proplace.core.options import integer
from proplace.loaders.layers import TrainedLayer
from proplace.loaders.sklearn import parts_of
from proplace.retrain.projection import BoxTarget, Projection

if TYPE_CHECKING:
    from proplace.core.shifts import Delta
    from proplace.retrain.projection import Floats


_LOOP = 10**9  # batches without improvement until scikit-learn acts on it: never


def refit_within(
    model: object,
    X: Any,
    y: Any,
    shifts: Delta,
    *,
    epochs: int = 5,
    batch_size: int | None = None,
    random_state: int = 0,
) -> Any:
    """Train a fitted scikit-learn network on new rows, within a shift set.

    The result accepts every counterfactual that was proved for the shift set.

    Parameters
    ----------
    model
        Fitted ``MLPClassifier``, or a pipeline that ends in one. It is not changed. The preprocessing
        stays fitted as it is.
    X, y
        Rows of the model, and their classes. New classes are rejected.
    shifts
        Shift set, delta around the model as it is, or ledger. If the model lies outside, the first
        projection moves it inside.
    epochs
        Number of passes over all rows.
    batch_size
        Rows of one step. Each step is one call of ``partial_fit`` and one projection. Default: the batch
        size of the model, at most 200 rows for ``"auto"``.
    random_state
        Seed of the order of the rows. The same number gives the same model.

    Returns
    -------
    object
        A trained copy of the model. The optimiser starts again with the settings of the model, which
        ``set_params`` can change. Its learning rate stays constant.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Model, Shifts
    >>> from proplace.retrain import refit_within
    >>> from sklearn.neural_network import MLPClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> mlp = MLPClassifier((4,), max_iter=20, tol=1.0, random_state=0).fit(X, X[:, 0] > 0.0)
    >>> shifts = Shifts.of(Model.of(mlp).network, 0.01)
    >>> later = refit_within(mlp, X, X[:, 0] > 0.2, shifts)
    >>> shifts.contains(Model.of(later).network)
    True
    """
    integer("epochs", epochs)
    integer("random_state", random_state, least=0)
    if batch_size is not None:
        integer("batch_size", batch_size)
    twin = copy.deepcopy(model)
    parameters = SklearnParameters(twin)
    mlp = parameters.classifier
    _check_mlp(mlp)
    target = BoxTarget.of(twin, shifts)
    parameters.layers = target.layers(parameters.layers)
    projection = Projection(parameters, target.shifts)
    rows, labels = _transformed(parameters, X), np.asarray(y)
    _check_labels(mlp, rows, labels)
    size = batch_size or (200 if mlp.batch_size == "auto" else mlp.batch_size)
    projection(parameters)
    own = mlp.get_params(deep=False)
    _begin(mlp)
    rng = np.random.default_rng(random_state)
    for _ in range(epochs):
        order = rng.permutation(len(labels))
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            mlp.set_params(batch_size=len(batch))
            mlp.partial_fit(_taken(rows, batch), labels[batch])
            projection(parameters)
    mlp.set_params(**own)
    target.check()
    return twin


class SklearnParameters:
    """The trained parameters of the network in a model, in place."""

    def __init__(self, model: object) -> None:
        self.front, self.classifier = parts_of(model)
        if isinstance(self.classifier, MLPClassifier):
            count = len(self.classifier.coefs_)
            self.layers = tuple(
                TrainedLayer(f"coefs_[{i}]", f"intercepts_[{i}]") for i in range(count)
            )
        else:
            intercept = "intercept_" if self.classifier.fit_intercept else None
            self.layers = (TrainedLayer("coef_", intercept),)

    def get(self, name: str) -> Floats:
        """Return the present values."""
        values = self._array(name)
        return values.T if name.startswith("coefs_") else np.atleast_1d(values)

    def set(self, name: str, values: Floats) -> None:
        """Write values into the present arrays."""
        self._array(name)[...] = values.T if name.startswith("coefs_") else values

    def _array(self, name: str) -> Any:
        attribute, _, place = name.partition("[")
        found = getattr(self.classifier, attribute)
        return found[int(place[:-1])] if place else found


def _check_mlp(mlp: Any) -> None:
    if not isinstance(mlp, MLPClassifier):
        raise ModelNotSupportedError(
            f"{type(mlp).__name__} cannot be trained step by step; "
            "MLPClassifier(hidden_layer_sizes=()) is the same model, and can"
        )
    if mlp.solver == "lbfgs":
        raise ModelNotSupportedError(
            "the solver 'lbfgs' does not train step by step. Call set_params(solver='adam') on the "
            "fitted MLPClassifier first",
            name="solver",
            value="lbfgs",
        )
    if mlp.early_stopping:
        raise ModelNotSupportedError(
            "early_stopping=True does not go with training step by step (scikit-learn's partial_fit "
            "refuses it). Call set_params(early_stopping=False) on the fitted MLPClassifier first",
            name="early_stopping",
            value=True,
        )


def _begin(mlp: Any) -> None:
    """Reset the optimiser, also after another solver."""
    # The caller shuffles, so the order does not depend on the random state of the model.
    mlp.set_params(shuffle=False, warm_start=False, n_iter_no_change=_LOOP)
    vars(mlp).pop("_optimizer", None)  # it would keep its old learning rate
    mlp.t_, mlp.loss_curve_ = 0, []
    mlp._no_improvement_count, mlp.best_loss_ = 0, np.inf


def _transformed(parameters: SklearnParameters, X: Any) -> Any:
    """Return preprocessed rows in the precision of the weights."""
    for step in parameters.front:
        X = step.transform(X)
    rows = X if hasattr(X, "shape") else np.asarray(X)
    return rows.astype(parameters.get(parameters.layers[0].weight).dtype)


def _check_labels(mlp: Any, rows: Any, labels: Any) -> None:
    if labels.ndim != 1 or len(labels) != rows.shape[0] or not len(labels):
        raise InputError(
            f"y must hold one class for each row: {rows.shape[0]} rows, y of shape {labels.shape}",
            name="y",
        )
    unknown = np.setdiff1d(labels, mlp.classes_)
    if len(unknown):
        raise InputError(
            f"y holds {unknown.tolist()[:5]}, which the model does not know. Its classes are "
            f"{mlp.classes_.tolist()}. Leave these rows out, or train a new model",
            name="y",
        )


def _taken(rows: Any, places: Any) -> Any:
    return rows.iloc[places] if hasattr(rows, "iloc") else rows[places]

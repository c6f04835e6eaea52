"""The experiment of the paper: data sets, training and retraining, methods, metrics, tables."""

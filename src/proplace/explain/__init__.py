"""The estimator and the baselines: people in, explanations in original units out."""

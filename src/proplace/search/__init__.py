"""The nearest robust point of the plausible region."""

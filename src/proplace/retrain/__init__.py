"""Training that keeps promises: inside a shift set, or by the smallest change of the last layer."""

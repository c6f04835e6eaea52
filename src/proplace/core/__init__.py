"""Networks, shifts, distances, errors, and small tools without mathematics."""

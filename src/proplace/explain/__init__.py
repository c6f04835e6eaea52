"""One lifecycle for every method: read people, find a point, prove it, say it in the table's units."""

"""Any table, in memory or in a file, to encoded rows, and results back to files."""

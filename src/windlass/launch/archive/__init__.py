"""Export of a run to one file, and import of such a file."""

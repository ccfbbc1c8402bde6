"""Exporting a run to an archive file, and importing such a file."""

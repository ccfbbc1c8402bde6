"""Export a run to an archive file, and import such an archive."""

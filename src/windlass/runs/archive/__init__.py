"""Contents and format of an archive of a run."""

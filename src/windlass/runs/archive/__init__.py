"""What an archive of a run holds."""

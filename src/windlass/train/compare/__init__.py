"""Why two runs differ."""

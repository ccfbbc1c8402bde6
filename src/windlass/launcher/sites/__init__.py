"""Adding sites, checking them with real jobs, and their paths."""

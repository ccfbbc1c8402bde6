"""Programs that wrap the user's command: one process per GPU, a host file, a Ray cluster."""

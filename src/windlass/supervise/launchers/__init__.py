"""Programs around the user's command: one process per GPU, a host file, a Ray cluster."""

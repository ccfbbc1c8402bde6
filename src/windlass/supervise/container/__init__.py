"""A replica's process as a container."""

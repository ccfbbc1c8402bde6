"""Environment pins: from a lock file or an interpreter to a cached environment that is built once."""

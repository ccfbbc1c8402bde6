"""Training state on disk: sharded, hashed, committed, resharded on load."""

"""Training state on disk: sharded, hashed, committed as a whole, and resharded on load."""

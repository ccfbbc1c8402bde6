"""Delete what no run needs any more."""

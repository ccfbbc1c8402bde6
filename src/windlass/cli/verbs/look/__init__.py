"""Read-only verbs for runs."""

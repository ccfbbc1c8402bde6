"""A gang: one leader, its replicas, and what they agree on."""

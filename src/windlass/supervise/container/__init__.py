"""User process of a replica in a container."""

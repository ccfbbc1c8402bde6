"""Content-addressed data: immutable versions, local or in a bucket; transfer; gc."""

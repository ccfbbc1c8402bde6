"""Reader for YAML 1.2."""

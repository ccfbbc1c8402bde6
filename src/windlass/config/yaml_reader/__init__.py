"""Reader of YAML 1.2."""

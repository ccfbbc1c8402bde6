"""Implementation of the verbs `beaker`, `mason` and `gantry`."""

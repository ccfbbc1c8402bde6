"""Behind the verbs `beaker`, `mason` and `gantry`."""

"""Foundation of every layer: errors, names, units, clock, files, processes. Standard library only; Python 3.9 syntax."""

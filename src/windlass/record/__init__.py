"""Format of a run's journal, and the policies that read it. Standard library only; Python 3.9 syntax."""

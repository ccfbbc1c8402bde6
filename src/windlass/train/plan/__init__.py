"""Cost of a recipe on a given number of processes, computed without running any of them."""

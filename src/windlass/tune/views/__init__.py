"""Views of a running sweep: a live table, log lines, or a notebook cell."""

"""Journal of a sweep: written by the head, replayed to restore the sweep, and summarized for readers."""

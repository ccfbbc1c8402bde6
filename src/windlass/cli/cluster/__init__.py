"""Parts of `windlass cluster`: up and down with their questions, and commands on the head."""

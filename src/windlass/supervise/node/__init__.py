"""Agent of a cluster's node: sets the machine up, runs Ray, and ends it in time whatever else is alive."""

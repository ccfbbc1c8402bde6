"""Keep a replica alive while its supervisor restarts, and stop it when it is cut off."""

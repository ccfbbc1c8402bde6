"""Gang: a leader, its replicas, and the protocol between them."""

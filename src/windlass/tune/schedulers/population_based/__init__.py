"""Population based training and its relatives."""

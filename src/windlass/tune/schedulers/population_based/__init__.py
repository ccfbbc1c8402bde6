"""Population based training and its variants."""

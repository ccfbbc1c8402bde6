"""A run at a Beaker site: image, secrets, storage, and the way to them."""

"""Support for Beaker sites: image, secrets, storage, and file transport."""

"""Support for runs at sites reached over ssh: client, local mirror, file transfer."""

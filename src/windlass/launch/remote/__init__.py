"""Runs at a site reached over ssh: client, local mirror, file transfer."""

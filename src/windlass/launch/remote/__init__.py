"""A run at a site reached over ssh: talk to the site, keep a local copy, fetch files."""

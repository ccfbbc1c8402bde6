"""Code pins: from a folder to a commit or an exact snapshot, and back to files."""

"""Planning for Beaker sites, and of the keys under `beaker` at any site."""

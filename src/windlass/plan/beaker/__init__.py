"""Planning for Beaker sites, and treatment of the keys under `beaker` at any site."""

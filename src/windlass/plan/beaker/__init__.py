"""An experiment at a Beaker site, and the kept extension `beaker` anywhere."""

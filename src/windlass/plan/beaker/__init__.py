"""Experiments at Beaker sites, and the extension `beaker` at any site."""

"""mason's command line, accepted unchanged: converted to Beaker's spec or to an experiment for any site."""

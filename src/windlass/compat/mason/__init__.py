"""mason's command line, unchanged: converted to Beaker's specification or to an experiment for any site."""

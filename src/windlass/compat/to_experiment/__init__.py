"""Shared parts of converting a mason or gantry launch to an experiment.

`destination` describes the site and maps Beaker's names to it, `relocation` replaces paths in Beaker's jobs by paths
at the site, `bash_line` parses and edits the shell lines of such jobs, `constraints` converts priorities, sizes
and retries, and `diagnostics` collects notes and problems. The options of mason and gantry are in their packages.
"""

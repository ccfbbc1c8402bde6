"""Shared conversion of mason's and gantry's launches to an experiment.

`destination` is the site and the meaning of Beaker's names there, `relocation` replaces paths of Beaker's jobs by
those of the site, `bash_line` reads and changes the lines that such jobs run, `constraints` converts priorities, sizes
and retries, and `diagnostics` collects notes and problems. The options of mason and gantry are in their packages.
"""

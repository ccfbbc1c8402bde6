"""What launches brought from Beaker's tools have in common when they go to any other place.

`destination` is the place and what Beaker's names mean there, `relocation` turns the paths that Beaker's jobs see into
those of the place, `bash_line` reads and changes the lines that such jobs run, and `findings` collects what a user must
be told or what refuses the launch. mason's and gantry's own words are in their packages.
"""

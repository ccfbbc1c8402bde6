"""The static site of the documentation: the pages of this repository, a Python reference and a command reference.

python -m scripts.website     build it in build/site; any warning of Sphinx fails
"""

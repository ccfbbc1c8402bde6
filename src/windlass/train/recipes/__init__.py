"""Recipes shipped with windlass: the settings of published runs, and small ones to start from.

Each is a function without arguments. Data paths are the user's: `windlass train NAME data.sources='[{path: FILE}]'`.
"""

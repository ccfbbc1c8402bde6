"""Data pins: where data comes from and the digest of its content; remote data is fetched into the store.

Digests of every source follow the rule of `windlass.store.data_version`.
"""

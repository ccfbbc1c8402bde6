"""Callbacks for training libraries that report to a sweep: keras, pytorch_lightning, xgboost, lightgbm.

Each is a module of its own and imports its library; give an object of it to the library's own list of callbacks.
"""

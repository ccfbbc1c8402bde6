"""Callbacks for training libraries, which report to a sweep: keras, pytorch_lightning, xgboost, lightgbm.

Each module imports its library; pass an object of its class to the library's list of callbacks.
"""

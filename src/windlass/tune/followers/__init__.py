"""Followers: separate processes that read a sweep's journal and export it to other formats and services."""

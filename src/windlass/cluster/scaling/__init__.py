"""Scaling of rented clusters by Ray's autoscaler on the head, through one node provider over our provider protocol."""

"""A replica at Beaker."""

"""The local backend: jobs run on this machine as processes of the user who launched them."""

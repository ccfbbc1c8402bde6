"""Sites: named machines with their profiles, one file each."""

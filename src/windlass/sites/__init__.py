"""Sites: named places with their profiles, one file each."""

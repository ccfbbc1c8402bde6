"""What a run was made from and what it made."""

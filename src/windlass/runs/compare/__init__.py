"""What is different between two runs."""

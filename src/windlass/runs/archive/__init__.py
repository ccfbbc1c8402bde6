"""Contents and format of run archives."""

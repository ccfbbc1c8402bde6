"""Custom code in a recipe: imported by name, checked against its signature, called and recorded."""

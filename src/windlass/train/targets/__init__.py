"""Parts of a recipe that are the user's own code: named, checked against their signature, called, recorded."""

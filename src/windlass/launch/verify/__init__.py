"""Compare what is there with what a run recorded, or execute it again."""

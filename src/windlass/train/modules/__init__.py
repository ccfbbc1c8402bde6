"""What a trainer drives: any model with a loss, or a language model."""

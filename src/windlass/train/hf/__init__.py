"""Models to and from the files of Hugging Face; transformers itself is not needed."""

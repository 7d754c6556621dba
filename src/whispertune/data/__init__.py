"""From a source to a corpus: read, decode, check, split. No model is needed for any of it."""

"""Where a step runs."""

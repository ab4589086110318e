"""Text of growing completions: incremental detokenization and stop strings."""

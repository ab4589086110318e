"""Import and export of rollouts: JSONL, Parquet and Arrow, as groups or as single completions."""

"""The configuration of a run: sections, files, overrides and descriptions of the fields."""

"""The paper's claims as comparisons with thresholds, their runs, verdicts, tables and figures."""

"""Every algorithm at every degree of off-policyness."""

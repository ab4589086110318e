"""`grre explain`: what a run will train on, from its configuration alone."""

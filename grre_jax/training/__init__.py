"""The learner and the run around it: `loop.train(config)` runs a configuration."""

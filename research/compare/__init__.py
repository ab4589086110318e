"""One configuration trained under several algorithms and regimes by `grre train`."""

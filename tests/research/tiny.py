"""A study's scale at which a run takes milliseconds."""

from research.in_graph.batch import Scale

TINY = Scale(
    task_options=(("operands", 2), ("answers", "short")),
    hidden_size=16,
    intermediate_size=16,
    num_layers=1,
    num_heads=2,
    groups=2,
    samples=2,
    questions=4,
    every=2,
    imitation_steps=4,
)

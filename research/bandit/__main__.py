"""`python -m research.bandit`."""

import sys

from research import command_line
from research.bandit import report


def main() -> int:
    """Runs the study; returns the exit status."""
    parser = command_line.make_parser("bandit", "Where each objective takes a three-arm bandit.")
    parser.add_argument("--output", default="runs/bandit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--algorithms", nargs="+", metavar="NAME")
    known = parser.parse_args()
    return command_line.finish(
        lambda: report.run(known.output, seed=known.seed, names=known.algorithms)
    )


if __name__ == "__main__":
    sys.exit(main())

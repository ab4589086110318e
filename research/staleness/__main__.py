"""`python -m research.staleness`."""

import sys
from collections.abc import Sequence

from research import command_line
from research.staleness import study


def main(words: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = command_line.make_parser(
        "staleness",
        "Every algorithm at every degree of off-policyness: heat maps and a ranking. Continues"
        " where it was stopped.",
    )
    command_line.add_tiny(parser, "staleness")
    options = command_line.tiny(parser.parse_args(words), "staleness")
    return command_line.finish(lambda: study.run(**options))


if __name__ == "__main__":
    sys.exit(main())

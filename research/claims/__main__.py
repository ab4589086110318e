"""`python -m research.claims`."""

import sys
from collections.abc import Sequence

from research import command_line
from research.claims import study


def main(words: Sequence[str] | None = None) -> int:
    """Runs the study; returns the exit status."""
    parser = command_line.make_parser(
        "claims",
        "The paper's claims measured with tiny models: runs, tables and figures. Continues where"
        " it was stopped.",
    )
    command_line.add_tiny(parser, "claims")
    options = command_line.tiny(parser.parse_args(words), "claims")
    return command_line.finish(lambda: study.run(**options))


if __name__ == "__main__":
    sys.exit(main())

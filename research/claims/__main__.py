"""`python -m research.claims`."""

import sys
from collections.abc import Sequence

from research import command_line
from research.claims import study


def main(words: Sequence[str] | None = None) -> int:
    """Runs the study; returns the exit status."""
    parser = command_line.make_parser(
        "claims",
        "The paper's claims measured with tiny models: runs, verdicts, tables and figures."
        " Continues where it was stopped.",
    )
    command_line.add_tiny(parser, "claims")
    parser.add_argument(
        "--again",
        type=int,
        metavar="N",
        help="seeds of a second set, judged beside the first; 6 if not given, 0 for none",
    )
    parser.add_argument(
        "--claim",
        action="append",
        default=[],
        metavar="NAME",
        help="only this claim, C1 to C7; may be given several times",
    )
    known = parser.parse_args(words)
    options = command_line.tiny(known, "claims")
    return command_line.finish(
        lambda: study.run(**options, again=known.again, claims=tuple(known.claim))
    )


if __name__ == "__main__":
    sys.exit(main())

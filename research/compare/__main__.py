"""`python -m research.compare`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from grre_jax import config as configs
from grre_jax.training.config.run import override
from research import command_line
from research.compare import study


def main(words: Sequence[str] | None = None) -> int:
    """Runs the comparison; returns the exit status."""
    parser = command_line.make_parser(
        "compare",
        "A configuration under several algorithms and regimes, trained by grre train. Continues"
        " where it was stopped. Fields of the configuration are overridden as for grre train.",
    )
    add = parser.add_argument
    add("config", help="a Python file with config() -> grre_jax.config.Config")
    add("--output", type=Path, help="the folder; runs/compare-NAME if not given")
    add(
        "--regime",
        action="append",
        dest="regimes",
        default=[],
        help="on-policy, offline, 'sync N', 'offset N', 'staleness N' or 'reuse N'; on-policy,"
        " 'sync 20' and offline if not given; may be given several times",
    )
    add(
        "--only",
        action="append",
        default=[],
        metavar="LABEL",
        help="an algorithm that takes part, by its label in tables, besides those of --algorithm;"
        " may be given several times",
    )
    add("--seeds", type=int, metavar="N", help="seeds a cell, at least 2; 3 if not given")
    add("--first-seed", type=int, default=0, metavar="N", help="the first seed; 0")
    command_line.add_algorithms(parser)
    known, fields = parser.parse_known_args(words)

    options = vars(known)
    file, output = options.pop("config"), options.pop("output")

    def work() -> None:
        config = override(configs.load_file(file), fields)
        study.run(config, output or Path(f"runs/compare-{config.name}"), **options)

    return command_line.finish(work)


if __name__ == "__main__":
    sys.exit(main())

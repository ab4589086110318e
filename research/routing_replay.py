"""Routing replay on a small mixture of experts: two folders of `python -m research.compare`,
without `training.replay_routes` and with it, in one table and one figure.

    python -m research.routing_replay runs/without runs/with research/results/routing_replay
"""

import argparse
import json
from pathlib import Path

from research.compare import report


def joined(without: Path, replayed: Path, output: Path) -> None:
    """Writes the results of both folders into `output`, as `research.compare` writes its own; the
    regimes of the second are marked.

    Args:
        without: folder of the runs without replay.
        replayed: folder of those with it, of the same configuration otherwise.
        output: the folder to write.
    """
    found, second = (
        json.loads((folder / "compare.json").read_text()) for folder in (without, replayed)
    )
    for cell in second["cells"]:
        found["cells"].append(cell | {"regime": f"{cell['regime']}, routes replayed"})
    output.mkdir(parents=True, exist_ok=True)
    report.write(output, found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    for name in ("without", "replayed", "output"):
        parser.add_argument(name, type=Path)
    joined(**vars(parser.parse_args()))

"""Prints the agreement of the verifiers with tests/tasks/verifiers/cases.tsv, as
docs/tasks.md has it.

    python scripts/verifier_agreement.py           # the table, from the column "differs"
    python scripts/verifier_agreement.py --write   # judges every case and fills that column

The verifiers before math-verify agreed with every case. --write needs the extras rewards and
reasoning-gym; the cases of a package that is not installed keep their column.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "tasks" / "verifiers"))
import cases  # noqa: E402

from grre_jax.errors import UsageError  # noqa: E402

LIMIT = 10  # seconds a case, as a verifier's process has


_stopped: list[int] = []  # signals of the case under way: a scorer may catch any exception


def _stop(signum: int, _) -> None:
    _stopped.append(signum)
    raise KeyboardInterrupt  # the one exception that judging lets through


def differs(row: dict[str, str], built: dict) -> str:
    """Returns what a verifier returns in place of the expected reward, "" if it agrees."""
    _stopped.clear()
    signal.alarm(LIMIT)
    try:
        found = cases.returned(row, built)
    except KeyboardInterrupt:
        if not _stopped:
            raise
    except UsageError:  # a package that is not installed
        return row["differs"]
    finally:
        signal.alarm(0)
    if _stopped:
        return "timeout"
    return "" if found == row["reward"] else found


def main() -> int:
    """Prints the table, after judging the cases if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--write", action="store_true", help="judge every case again")
    options = parser.parse_args()
    rows = cases.rows()
    if options.write:
        signal.signal(signal.SIGALRM, _stop)
        built: dict = {}
        for row in rows:
            row["differs"] = differs(row, built)
        text = cases.CASES.read_text(encoding="utf-8").split("\n")
        lines = [line for line in text if line.startswith("#")] + ["\t".join(rows[0])]
        lines += ["\t".join(row.values()) for row in rows]
        cases.CASES.write_text("\n".join(lines) + "\n", encoding="utf-8")
    counts = Counter(row["kind"] for row in rows)
    right = Counter(row["kind"] for row in rows if not row["differs"])
    print("| kind | cases | right before | right after |\n| -- | -- | -- | -- |")
    for kind in sorted(counts):
        print(f"| {kind} | {counts[kind]:,} | {counts[kind]:,} | {right[kind]:,} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

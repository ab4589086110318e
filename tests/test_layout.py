"""The package's layout: files import lower levels and their own room, never in a circle.

Every import counts: at the top, inside functions and under TYPE_CHECKING.
"""

import ast
import graphlib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = (
    "errors",
    "console",
    "json_files",
    "machine",
    "allocation",
    "domains",
    "random_streams",
    "ray_cluster",
    "sampling_params",
)
RECORDS = (
    "training.optimizer",
    "training.data.plan",
)
# docs/design.md, "Layout": a file imports lower levels, its own room, and, in the levels marked by
# True, the other rooms of its level.
LEVELS = (
    (SHARED, True),
    (("storage", "objectives", "parallel"), False),
    (("models", "tasks"), False),
    (("sampling", "rollouts"), False),
    (("reporting",), False),
    (RECORDS, True),
    (("training.config",), False),
    (("training.data.pack",), False),
    (("training.step", "training.metrics", "training.stopping", "training.checkpoints"), True),
    (("training.build",), False),
    (("training.data",), False),
    (("training.actors", "training.run_folder"), False),
    (("training.policies",), False),
    (("training.evaluation",), False),
    (("training",), True),
    (("planner",), False),
    (("explain", "generation"), False),
    (("cli", "config", "api", "__main__"), True),
)


def module_files():
    """Returns the files of the package by module name, without the package itself, which
    re-exports `api`.
    """
    files = {}
    for file in (ROOT / "grre_jax").rglob("*.py"):
        parts = file.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    files.pop("grre_jax")
    return files


def import_graph():
    """Returns the modules that each module imports; a name that a room exports is an import of the
    module that defines it.
    """
    files = module_files()
    nodes = {
        name: [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom)]
        for name, file in files.items()
    }
    exports = {
        name: {alias.name: node.module for node in nodes[name] for alias in node.names}
        for name, file in files.items()
        if file.name == "__init__.py"
    }
    graph = {}
    for name in files:
        used = set()
        for node in nodes[name]:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                origin = exports.get(node.module, {}).get(alias.name, node.module)
                used.add(full if full in files else origin)
        graph[name] = used & files.keys() - {name}
    return graph


def level(module):
    """Returns a module's level and the room of `LEVELS` that it belongs to."""
    name = module.removeprefix("grre_jax.")
    rooms = [
        (len(room), number, room)
        for number, (names, _) in enumerate(LEVELS)
        for room in names
        if f"{name}.".startswith(f"{room}.")
    ]
    return max(rooms)[1:]


def upward(graph):
    """Returns the imports that go up, or sideways where the level allows none."""
    wrong = []
    for module, used in graph.items():
        here, room = level(module)
        for other in used:
            there, other_room = level(other)
            if here < there or (here == there and room != other_room and not LEVELS[here][1]):
                wrong.append(f"{module} -> {other}")
    return wrong


def test_imports_go_down_the_levels_and_never_in_a_circle():
    graph = import_graph()
    assert len(graph) > 150
    assert "grre_jax.training.build" in graph["grre_jax.training.policies"]
    assert upward(graph) == []
    graphlib.TopologicalSorter(graph).prepare()

"""Counts of the package's layout, from the syntax trees of its files.

Every import counts: at the top, inside functions, under TYPE_CHECKING, and those of a package's stub file.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "grre_jax"
SHARED = (
    "errors",
    "console",
    "json_files",
    "machine",
    "allocation",
    "domains",
    "random_streams",
    "sampling_params",
)
RECORDS = (
    "training.optimizer",
    "training.data.config",
    "training.data.regime",
    "training.data.schedule",
    "training.data.dynamic_sampling",
    "training.checkpoints.config",
    "training.evaluation.config",
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
    (("training.state", "training.runtime", "training.checkpoints"), True),
    (("training.data.row_filling", "training.data.pack", "training.data.checks"), True),
    (("training.build",), False),
    (("training.data",), False),
    (("training.actors", "training.export", "training.run_folder"), False),
    (("training.completion_logprobs", "training.verdict_metrics"), False),
    (("training.policies",), False),
    (("training.evaluation",), False),
    (("training",), True),
    (("planner",), False),
    (("explain", "generation"), False),
    (("cli", "config", "api", "__main__"), True),
)


def modules() -> dict[str, Path]:
    """Returns the files of the package by module name."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(files: dict[str, Path]) -> dict[str, set[str]]:
    """Returns the modules of the package that each module imports; the package itself, which
    re-exports `api`, counts for nothing.

    A name that a package exports counts as an import of the module that defines it.
    """
    exported = {name: _exports(file) for name, file in files.items()}
    found = {}
    for name, file in files.items():
        used = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grre_jax"):
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    where = exported.get(node.module, {}).get(alias.name, node.module)
                    used.add(full if full in files else where)
            elif isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names if alias.name in files}
        found[name] = used - {name, "grre_jax"} if name != "grre_jax" else set()
    return found


def _exports(file: Path) -> dict[str, str]:
    if file.name != "__init__.py":
        return {}
    nodes = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.ImportFrom)]
    return {a.name: node.module for node in nodes for a in node.names}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the strongly connected components of more than one module.

    Tarjan, "Depth-first search and linear graph algorithms", SIAM J. Comput. 1972.
    """
    index, low, stack, found = {}, {}, [], []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in graph[module]:
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            part = stack[stack.index(module) :]
            del stack[-len(part) :]
            if len(part) > 1:
                found.append(sorted(part))

    for module in graph:
        if module not in index:
            visit(module)
    return found


def level(module: str) -> tuple[int, str]:
    """Returns a module's level and the room of `LEVELS` that it belongs to."""
    name = module.removeprefix("grre_jax.")
    rooms = [
        (len(room), number, room)
        for number, (names, _) in enumerate(LEVELS)
        for room in names
        if f"{name}.".startswith(f"{room}.")
    ]
    _, number, room = max(rooms)
    return number, room


def upward(graph: dict[str, set[str]]) -> list[str]:
    """Returns the imports that go up, or sideways where the level allows none."""
    wrong = []
    for module, used in graph.items():
        for other in used:
            (here, room), (there, other_room) = level(module), level(other)
            if here < there or (here == there and room != other_room and not LEVELS[here][1]):
                wrong.append(f"{module} -> {other}")
    return sorted(wrong)


def _documented(tree: ast.AST):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def long_lines(most: int = 100) -> list[str]:
    """Returns the lines of the package, configurations and examples of more than `most` columns."""
    files = [
        f
        for folder in ("grre_jax", "research", "configs", "examples")
        for f in (ROOT / folder).rglob("*.py")
    ]
    return [
        f"{file.relative_to(ROOT)}:{number}"
        for file in sorted(files)
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if len(line) > most
    ]


def undocumented() -> list[str]:
    """Returns the public modules, classes, functions and methods without a docstring."""
    found = []

    def look(body: list[ast.stmt], where: str) -> None:
        for node in body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("_"):
                continue
            if ast.get_docstring(node) is None and not _overloads(node):
                found.append(f"{where}.{node.name}")
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{where}.{node.name}")

    for name, file in modules().items():
        tree = ast.parse(file.read_text())
        if ast.get_docstring(tree) is None:
            found.append(name)
        look(tree.body, name)
    return found


def _overloads(node: ast.stmt) -> bool:
    marks = ("overload", "setter")
    return any(ast.unparse(d).endswith(marks) for d in getattr(node, "decorator_list", []))


def questions() -> list[str]:
    """Returns the docstrings that begin with a question word: they describe, where a verb would state."""
    words = ("What", "Whether", "How", "Which", "Where", "Who", "Why", "When")
    found = []
    for file in PACKAGE.rglob("*.py"):
        for node in _documented(ast.parse(file.read_text())):
            text = ast.get_docstring(node)
            if text and text.split()[0].rstrip(",") in words:
                found.append(
                    f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 1)} {text.split(chr(10))[0]}"
                )
    return sorted(found)

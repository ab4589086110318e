"""Generates the pages of the Python reference: one page per room, with every public name.

The text comes from the docstrings, by mkdocstrings. A name that several rooms export is documented
once, on the page of the outermost room; the inner rooms link there.
"""

import ast
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = "grre_jax"
FOLDER = "reference/python"
MODULES = ("api", "config", "errors")  # public modules that are not folders


def on_config(config: Any) -> Any:
    """Adds the pages to the navigation."""
    pages = [{room: f"{FOLDER}/{room}.md"} for room in sorted(_rooms())]
    (reference,) = (section["Reference"] for section in config.nav if "Reference" in section)
    reference.append({"Python": pages})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages to the site."""
    from mkdocs.structure.files import File

    rooms = _rooms()
    owners: dict[str, str] = {}  # where an object is defined: the outermost room that exports it
    for room in sorted(rooms, key=lambda room: (room.count("."), room)):
        for defined in rooms[room].values():
            owners.setdefault(defined, room)
    for room, names in rooms.items():
        content = _page(room, names, owners)
        files.append(File.generated(config, f"{FOLDER}/{room}.md", content=content))
    return files


def _page(room: str, names: dict[str, str], owners: dict[str, str]) -> str:
    options = ["    options:", "      members: []", "      show_root_heading: false"]
    lines = [f"# {PACKAGE}.{room}", "", f"::: {PACKAGE}.{room}", *options, ""]
    for name, defined in sorted(names.items(), key=lambda pair: pair[0].lower()):
        owner = owners[defined]
        if owner == room:
            lines += [f"::: {PACKAGE}.{room}.{name}", ""]
        else:
            anchor = f"{owner}.md#{PACKAGE}.{owner}.{name}"
            lines += [f"## {name}", "", f"[`{PACKAGE}.{owner}.{name}`]({anchor})", ""]
    return "\n".join(lines)


def _rooms() -> dict[str, dict[str, str]]:
    """Public names of every room, each with the full name of its definition."""
    found = {}
    for file in sorted((ROOT / PACKAGE).rglob("__init__.py")):
        package = ".".join(file.parent.relative_to(ROOT).parts)
        names = _imported(file, package)
        if names and package != PACKAGE:
            found[package.removeprefix(f"{PACKAGE}.")] = names
    for module in MODULES:
        file = ROOT / PACKAGE / f"{module}.py"
        found[module] = _imported(file, PACKAGE) | _defined(file, f"{PACKAGE}.{module}")
    return found


def _imported(file: Path, package: str) -> dict[str, str]:
    found = {}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            module = f"{package}.{node.module}" if node.level else node.module or ""
            if module.startswith(f"{PACKAGE}."):
                found |= {a.asname or a.name: f"{module}.{a.name}" for a in node.names}
    return found


def _defined(file: Path, module: str) -> dict[str, str]:
    kinds = (ast.ClassDef, ast.FunctionDef)
    names = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, kinds)]
    return {name: f"{module}.{name}" for name in names if not name.startswith("_")}

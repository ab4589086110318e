"""Programs in a process of their own, on several simulated devices."""

import os
import subprocess
import sys


def environment(devices=8):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def printed(program, *arguments, devices=8):
    """Runs Python code; returns what it prints last."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment(devices),
        capture_output=True,
        text=True,
        timeout=2000,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1]

"""Results name what computed them."""

import platform
from pathlib import Path

import jax
import pytest

from grre_jax import machine


def test_the_line_names_number_kind_and_backend_of_devices():
    assert (
        machine.devices_line()
        == f"{len(jax.devices())} x {jax.devices()[0].device_kind} ({jax.default_backend()})"
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: Some CPU: 3 GHz\nprocessor\t: 1\n", "Some CPU: 3 GHz"),
        ("processor : 0\n", None),
        (None, None),
    ],
)
def test_the_processor_is_named_where_the_system_tells_and_its_architecture_elsewhere(
    tmp_path, monkeypatch, text, name
):
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(machine, "Path", lambda _: Path(file))
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert machine.cpu_model() == (name or platform.machine())

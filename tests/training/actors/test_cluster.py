"""Explorers on a Ray cluster on loopback: a run with them equals one without, whoever dies."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from grre_jax import config as c
from grre_jax import rollouts
from grre_jax.domains import ConfigError
from grre_jax.errors import UsageError
from grre_jax.training import loop

from ...run_processes import bits, log

pytest.importorskip("ray", reason="needs the extra cluster")
pytestmark = pytest.mark.usefixtures("no_reports")


def explorers():
    """Ids of the processes of explorers that this process's cluster has."""
    names = {}
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            names[int(folder.name)] = (folder / "cmdline").read_text()
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    raylets = {number for number, parent in parents.items() if parent == os.getpid()}
    return sorted(
        number
        for number, name in names.items()
        if name.startswith("ray::Worker") and parents.get(number) in raylets
    )


@pytest.fixture
def killed():
    """Kills an explorer a second after two have begun; gives the ids of those that were killed."""
    ids = []
    end = threading.Event()

    def kill():
        while not end.wait(0.05):
            if len(found := explorers()) > 1:
                time.sleep(1)
                os.kill(found[0], signal.SIGKILL)
                ids.append(found[0])
                return

    thread = threading.Thread(target=kill)
    thread.start()
    yield ids
    end.set()
    thread.join()


def groups(folder):
    return {(group.position, group.attempt): group for group in rollouts.read(folder / "rollouts")}


def test_a_run_with_explorers_equals_one_without(make_config, tiny_run, tmp_path, killed):
    cluster = c.ClusterConfig("local", most=2, cpus=0.5)
    config = make_config(tmp_path / "run", cluster=cluster)
    loop.train(config)
    assert killed
    assert groups(tmp_path / "run") == groups(tiny_run)
    assert log(tmp_path / "run") == log(tiny_run)
    assert bits(tmp_path / "run") == bits(tiny_run)


def test_what_a_cluster_lacks_is_named(make_config, tmp_path):
    cluster = c.ClusterConfig("local", resources={"TPU": 4})
    with pytest.raises(UsageError, match="cluster: .*4 TPU"):
        loop.train(make_config(tmp_path / "run", cluster=cluster))
    with pytest.raises(UsageError, match="cluster.address: '127.0.0.1:1'"):
        loop.train(make_config(tmp_path / "run", cluster=c.ClusterConfig("127.0.0.1:1")))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"least": 0}, "least"),
        ({"least": 3, "most": 2}, "most"),
        ({"cpus": -1}, "cpus"),
        ({"resources": {"TPU": "4"}}, "resources.TPU"),
    ],
)
def test_wrong_numbers_of_explorers(fields, name):
    with pytest.raises(ConfigError) as error:
        c.ClusterConfig("local", **fields)
    assert error.value.field == name

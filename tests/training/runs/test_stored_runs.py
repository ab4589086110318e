"""A run that is killed in an object store (moto's S3 server on loopback) and goes on elsewhere."""

import time

import pytest

from grre_jax import rollouts
from grre_jax.training import loop
from grre_jax.training.run_folder import copied

from ...run_processes import bits, entered, kill_all, log, quiet, start, written

# The process copies often.
OFTEN = "\nfrom grre_jax.training import run_folder\nrun_folder.SECONDS = 0.1\n"


@pytest.mark.slow
def test_killed_and_resumed(store, make_config, tiny_run, tmp_path, no_reports):
    url = f"s3://{store.bucket}/run"
    file = written(make_config(tmp_path / "config"))
    file.write_text(file.read_text() + OFTEN)
    process = start(file, url, GRRE_CACHE=str(tmp_path / "elsewhere"))
    while len(entered(url)) < 2:
        if process.poll() is not None:
            pytest.fail(str(process.communicate()))
        time.sleep(0.05)
    kill_all()
    process.wait()
    assert rollouts.verify(f"{url}/rollouts").ok
    loop.train(make_config(url), resume=True, console=quiet())
    with copied(url, steps=[None]) as run:
        assert log(run) == log(tiny_run) and bits(run) == bits(tiny_run)
    assert list(rollouts.read(f"{url}/rollouts")) == list(rollouts.read(tiny_run / "rollouts"))

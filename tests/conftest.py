"""A configuration that passes through every part of the road in seconds, and one finished run of
it.
"""

import dataclasses
import fcntl
import gc
import importlib.metadata
import os
import pathlib
import re
import shutil
import sys

import hypothesis
import jax
import pytest
from jaxtyping import install_import_hook
from packaging.version import Version

from . import array_checks

# Array annotations of these modules are checked in every test; compiled functions are checked as
# they are traced.
sys.modules["array_checks"] = array_checks
ARRAYS_CHECKED = (
    "models.attention",
    "models.blocked_attention",
    "models.experts",
    "models.logprobs",
    "models.lora",
    "models.products",
    "models.rotary",
    "models.transformer",
    "objectives.batch",
    "objectives.diagnostics",
    "sampling.distributions",
)
install_import_hook(
    [*(f"grre_jax.{room}" for room in ARRAYS_CHECKED), "research.surrogate"],
    "array_checks.check_arrays",
)

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
CALCULATOR = f"{EXAMPLES / 'calculator.py'}:Calculator"
CHAT_ARITHMETIC = f"{EXAMPLES / 'chat_arithmetic.py'}:ChatArithmetic"

# Examples are judged by what they show, never by how long the machine took to make or run them.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")

# The tests' time is the compiler's: LLVM is told not to optimise. By these flags XLA's own passes,
# and so programs, layouts and memory, stay as they are. Each program is one piece of code to LLVM:
# cut into 32, small ones cost up to a quarter more, and both processors are busy anyway.
QUICK = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
)
# The older of XLA's two ways from a fusion to LLVM takes less than half of the compiler's time
# (measured: 49 for 114 s). Newer versions do not have it, and end at a flag that they do not know.
if Version(importlib.metadata.version("jaxlib")) < Version("0.11.1"):
    QUICK += " --xla_cpu_use_fusion_emitters=false"


def pytest_configure(config):
    """What compiles for the session and the processes that its tests start is quick to make, but
    for parity, which compiles as users do, and where XLA_FLAGS says how to optimise.

    jax's compilation cache on disk would save more time still, and with these flags crashes the CPU
    backend now and then (jax 0.10.2: a segmentation fault as a program is written to it). It is off
    but where a test turns it on: the tests leave the user's cache folder alone.
    """
    # Without lines of Python in programs, whose writing takes time.
    for name, value in (("enable_compilation_cache", False), ("traceback_in_locations_limit", 0)):
        os.environ[f"JAX_{name.upper()}"] = str(int(value))
        jax.config.update(f"jax_{name}", value)  # which is imported already
    # Read when Ray is imported: 127.0.0.1 stays as it is.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    flags = os.environ.get("XLA_FLAGS", "")
    if config.option.markexpr != "parity" and "xla_backend_optimization_level" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {QUICK}".strip()


def pytest_ignore_collect(collection_path, config):
    """Importing torch and transformers takes seconds; None leaves the choice to others."""
    return (collection_path.name == "parity" and "not parity" in config.option.markexpr) or None


def pytest_collection_finish():
    """What is collected stays to the end: the garbage collector need not look at it again."""
    gc.freeze()


LONGEST = (
    "test_formulas.py",
    "test_docstring_examples.py",
    "test_command.py",
)


def pytest_collection_modifyitems(items):
    """Slow tests may take an hour each; the limit of the others is in pyproject.toml. Whole runs and
    the longest other files begin, so that no worker ends with one alone.
    """
    items.sort(key=lambda item: not ("training" in item.path.parts or item.path.name in LONGEST))
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))


# A compiled program is six pieces of mapped memory or more, and a process that comes to the
# kernel's limit (65,530 by default) aborts in the compiler.
MOST_MAPPINGS = 20_000
COMPILED_ROOMS = (
    "models",
    "objectives",
    "parallel",
    "sampling.distributions",
)  # whose functions are traced into programs


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_are_let_go(request):
    """A file finds what earlier ones compiled, until there is too much of it.

    Where compiled functions are patched, files begin and end with none: a program knows nothing of
    a patch that came later, and keeps one that is gone.
    """
    room = request.path.relative_to(request.config.rootpath / "tests").parts[0]
    patches = room in COMPILED_ROOMS and any(
        "monkeypatch" in item.fixturenames
        for item in request.session.items
        if item.path == request.path
    )
    _let_go(patches)
    yield
    _let_go(patches or _mappings() > MOST_MAPPINGS)


def _mappings():
    maps = pathlib.Path("/proc/self/maps")
    return len(maps.read_bytes().splitlines()) if maps.exists() else MOST_MAPPINGS + 1


def _let_go(wanted):
    if wanted:
        jax.clear_caches()


@pytest.fixture(scope="session")
def make_config():
    """`make_config(folder, words, **fields)`: a two-layer model, two-operand arithmetic, eight
    steps with samples up to two steps old; changed by fields and by a command line.

    Training and evaluation sample in the same shape, and the other small runs of the tests have the
    shapes of this one: they are compiled once.
    """
    from grre_jax import config as c
    from grre_jax.training.config.run import override

    def make(folder, words="", **fields):
        config = c.Config(
            name="tiny",
            run_dir=str(folder),
            model=c.ModelSource(
                hidden_size=16,
                intermediate_size=32,
                num_layers=2,
                num_heads=2,
                num_kv_heads=1,
                head_dim=8,
            ),
            task=c.TaskConfig("arithmetic", {"operands": 2}),
            objective=c.ObjectiveConfig(
                "rec_oneside_nois", {"epsilon_low": 0.6, "epsilon_high": 2.0}
            ),
            regime=c.Regime(sync_interval=3),
            sampling=c.SamplingConfig(
                group_size=4, max_prompt_tokens=4, max_new_tokens=3, prompts_per_call=4
            ),
            training=c.TrainingConfig(steps=8, prompts_per_step=4),
            optimizer=c.OptimizerConfig(learning_rate=1e-2),
            warm_start=c.WarmStartConfig(
                steps=6,
                demonstrations=32,
                batch_size=16,
                optimizer=c.OptimizerConfig(learning_rate=3e-2),
            ),
            evaluation=c.EvaluationConfig(every=4, questions=12, num_samples=4, greedy=False),
            checkpoint=c.CheckpointConfig(every=3),
            logging=c.LoggingConfig(tensorboard=False),
        )
        return override(dataclasses.replace(config, **fields), words.split())

    return make


@pytest.fixture(scope="session")
def tiny_run(make_config, tmp_path_factory):
    """The folder of a finished run; only to be looked at."""
    from grre_jax import reporting
    from grre_jax.reporting.run_report import report
    from grre_jax.training import loop

    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # one run for all workers
    done = root / "tiny.done"
    with open(root / "tiny.lock", "w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            patch.setattr(reporting, "report", report)  # in a module without reports too
            loop.train(make_config(root / "runs" / "tiny"), overwrite=True)
            done.touch()
    return root / "runs" / "tiny"


@pytest.fixture
def copy(tiny_run, tmp_path):
    """A copy of the finished run, to be changed."""
    return shutil.copytree(tiny_run, tmp_path / "copy")


@pytest.fixture(scope="module")
def no_reports():
    """Runs of the module end without a report: its figures take two thirds of a short one."""
    from grre_jax import reporting

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reporting, "report", lambda *_, **__: None)
        yield


@pytest.fixture(scope="session")
def object_server():
    """S3 on loopback; see `object_server.Faults`."""
    pytest.importorskip("s3fs", reason="needs the extras s3 and test")
    pytest.importorskip("moto", reason="needs the extras s3 and test")
    from .object_server import served

    with served() as server:
        yield server


@pytest.fixture
def store(object_server, tmp_path, monkeypatch):
    """`store.url`: the server; `store.bucket`: a bucket of the test's own, and `store.folder`: a
    rollout folder to be in it; `store.files`: fsspec's view; `store.plan`: faults.

    Processes that the test starts find the server by their environment.
    """
    import s3fs

    from grre_jax.storage import remote

    server = object_server
    settings = {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in (
        settings | {"AWS_MAX_ATTEMPTS": "2", remote.FOLDER_VARIABLE: str(tmp_path / "cache")}
    ).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    server.plan, server.files = None, s3fs.S3FileSystem(use_listings_cache=False)
    server.bucket = re.sub("[^a-z0-9]", "", tmp_path.name)[-20:].zfill(8)
    server.files.mkdir(server.bucket)
    server.folder = f"{server.bucket}/run/rollouts"
    yield server
    server.plan = None


@pytest.fixture(scope="session")
def make_group():
    """`make_group(position, **fields)`: a group that fills every field."""
    from .groups import stored_group

    return stored_group


@pytest.fixture
def folder(tmp_path, make_group):
    """A rollout folder of three data sets with 4 groups each, at positions 0 to 11 and versions
    0 to 2.
    """
    from grre_jax import rollouts

    root = tmp_path / "rollouts"
    for version in range(3):
        groups = [make_group(4 * version + i, version=version) for i in range(4)]
        rollouts.write(
            root, groups, writer="sampler", policy_version=version, metadata={"task": "arithmetic"}
        )
    return root


@pytest.fixture(scope="session")
def flip():
    """`flip(path, offset, bit=0)`: flips one bit of a file."""

    def flip_bit(path, offset, bit=0):
        data = bytearray(path.read_bytes())
        data[offset] ^= 1 << bit
        path.write_bytes(data)

    return flip_bit

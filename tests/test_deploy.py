"""The files of deploy/: what they name exists, and the command that they run is understood.

Their shell runs in bash, with stand-ins for the programs of the clouds that write their words down.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from grre_jax.cli.entry import make_parser
from grre_jax.training.config.run import Config, load_file, override

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which Ray installs")
ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
# Each has its words in the file of its name, one a line.
STAND_IN = 'printf "%s\\n" "$@" >> "$SAID/{name}"\n'
# Runs the command behind its options, as srun and symmetric-run do.
RUNS = {
    "srun": 'while [[ $1 == -* ]]; do shift; done; "$@"\n',
    "ray": 'if [[ $* == *" -- "* ]]; then while [ "$1" != -- ]; do shift; done; shift; "$@"; fi\n',
    "scontrol": "echo node0\n",
}


def said(script, tmp_path, **variables):
    """The words of each stand-in that a script of bash called."""
    programs = tmp_path / "bin"
    words = tmp_path / "said"
    programs.mkdir(parents=True)
    words.mkdir()
    for name in ("grre", "ray", "srun", "scontrol", "pip", "apt-get"):
        file = programs / name
        file.write_text("#!/bin/bash\n" + STAND_IN.format(name=name) + RUNS.get(name, ""))
        file.chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    environment = {"PATH": path, "HOME": str(tmp_path), "SAID": str(words)} | variables
    command = ["bash", "-c", script, "bash", *shlex.split(variables.get("WORDS", ""))]
    subprocess.run(command, env=environment, cwd=tmp_path, check=True, timeout=60)
    return {file.name: file.read_text().splitlines() for file in words.iterdir()}


def configured(words):
    """The configuration that the real parser makes of the words of `grre`."""
    parsed, fields = make_parser().parse_known_args(words)
    assert parsed.command == "train" and parsed.num_processes == "1"
    file = ROOT / parsed.config
    return override(load_file(str(file)) if file.exists() else Config(name="any"), fields)


def extras():
    """The extras that the package has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])


def named_extras(text):
    """The extras that commands of pip name."""
    found = re.findall(r"(?<!\S)['\"]?\.\[([\w,-]+)\]", text)
    return {extra for names in found for extra in names.split(",")}


def dockerfile():
    """(instruction, rest) of each line of the Dockerfile."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    text = text.replace("\\\n", " ")
    return [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("accelerator", ["none", "tpu", "cuda"])
def test_the_image_installs_extras_that_exist(accelerator, tmp_path):
    default = dict(rest.split("=") for word, rest in dockerfile() if word == "ARG")
    assert set(default) == {"ACCELERATOR"} and default["ACCELERATOR"] == "none"
    script = "\n".join(rest for word, rest in dockerfile() if word == "RUN" and "pip" in rest)
    found = named_extras("\n".join(said(script, tmp_path, ACCELERATOR=accelerator)["pip"]))
    assert found - extras() == set() and "cluster" in found
    assert found & {"tpu", "cuda"} == {accelerator} - {"none"}


def rayjob():
    """The RayJob."""
    return yaml.safe_load((DEPLOY / "kuberay.yaml").read_text())


def test_the_command_of_the_ray_job_asks_for_what_the_groups_have(tmp_path):
    job = rayjob()["spec"]
    cluster = configured(said(job["entrypoint"], tmp_path)["grre"]).cluster
    groups = {group["groupName"]: group for group in job["rayClusterSpec"]["workerGroupSpecs"]}
    slices, gpus = groups["learner"], groups["explorers"]
    learner = cluster.learner
    explorers = cluster.explorers
    selected = slices["template"]["spec"]["nodeSelector"]
    assert selected["cloud.google.com/gke-tpu-topology"] == learner.topology
    assert (slices["numOfHosts"], slices["replicas"]) == (learner.hosts, learner.slices)
    limits = gpus["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert int(limits["nvidia.com/gpu"]) == explorers.accelerators
    assert (gpus["minReplicas"], gpus["maxReplicas"]) == (explorers.least, explorers.most)
    for group, each in ((slices, learner), (gpus, explorers)):
        container = group["template"]["spec"]["containers"][0]
        assert int(container["resources"]["limits"]["cpu"]) >= each.cpus


@pytest.mark.parametrize("nodes, gpus, resumed", [(1, "8", False), (3, "", False), (3, "8", True)])
def test_slurm_starts_one_explorer_on_each_node_but_the_learners(nodes, gpus, resumed, tmp_path):
    """And goes on with a run that exists."""
    run = tmp_path / "run"
    if resumed:
        run.mkdir()
        (run / "config.json").touch()
    variables = {"SLURM_JOB_NUM_NODES": str(nodes), "SLURM_JOB_NODELIST": "node[0-2]"}
    variables |= {"SLURM_NODEID": "0", "RUN": str(run), "SLURM_JOB_ID": "1"}
    variables |= {"SLURM_GPUS_ON_NODE": gpus} if gpus else {}
    variables["WORDS"] = "CONFIG --training.steps 7"
    words = said((DEPLOY / "slurm.sh").read_text(), tmp_path / "script", **variables)
    assert ("--resume" in words["grre"]) == resumed and "requeue" not in words["scontrol"]
    assert words["ray"][:3] == ["symmetric-run", "--address", "node0:6379"]
    config = configured([word for word in words["grre"] if word != "--resume"])
    assert config.training.steps == 7 and config.run_dir == str(run)
    explorers = config.cluster.explorers
    assert config.cluster.address == "auto" and explorers.most == nodes - 1
    assert explorers.each == {"CPU": 1, "GPU": int(gpus or 0), "explorer": 1}


def test_skypilot_starts_the_head_on_rank_0_and_explorers_on_the_others(tmp_path):
    task = yaml.safe_load((DEPLOY / "skypilot.yaml").read_text())
    assert named_extras(task["setup"]) - extras() == set()
    variables = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_GPUS_PER_NODE": "1"}
    variables |= {"SKYPILOT_NUM_NODES": str(task["num_nodes"]), "RUN": str(tmp_path / "run")}
    variables |= {"CONFIG": task["envs"]["CONFIG"], "SKYPILOT_NODE_RANK": "0"}
    words = said(task["run"], tmp_path / "head", **variables)
    config = configured(words["grre"])
    assert config.cluster.address == "10.0.0.1:6379" and config.run_dir == variables["RUN"]
    assert config.cluster.explorers.most == task["num_nodes"] - 1 and "--head" in words["ray"]
    variables["SKYPILOT_NODE_RANK"] = "1"
    words = said(task["run"], tmp_path / "worker", **variables)
    assert "grre" not in words and "--head" not in words["ray"]
    assert '{"explorer": 1}' in words["ray"] and "10.0.0.1:6379" in words["ray"]

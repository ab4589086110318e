"""One record of sampling parameters: its domains, and where a new field shows up by itself."""

import ast
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grre_jax.config import Config, EvaluationConfig, SamplingConfig
from grre_jax.sampling_params import SamplingParams

PACKAGE = Path(__import__("grre_jax").__file__).parent
# Files that may name a parameter that changes a token's distribution: the record, and the format of
# stored groups, which has a column for each of the first four and takes no more.
NAMING = {
    "sampling_params.py",
    "rollouts/encoding.py",
    "rollouts/schema.py",
    "rollouts/tools/exchange/exporters.py",
    "rollouts/tools/exchange/rows.py",
    "rollouts/tools/expression.py",
}
# A fictitious field: the record and its maths are all that is written.
FIELD = '    skip_top: int = number(0, 0, part="SkipTop")\n    max_new_tokens: int'
ENTRY = (
    "        skip_top (at least 0): nothing but a fictitious parameter; 0 for none.\n"
    "        max_new_tokens (at least 1)"
)
MATHS = '''

@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SkipTop:
    """Cuts all but the most probable token if k is not 0."""

    k: Int[Array, ""] | int = 0

    def active(self, vocab):
        return jnp.asarray(self.k) > 0

    def threshold(self, scaled, floor=_NOTHING_CUT, axis=None):
        return jnp.where(jnp.asarray(self.k) > 0, vocabulary.largest(scaled, axis), floor)
'''
PROBE = """
import argparse, contextlib, io, json, sys
import numpy as np
from grre_jax.cli.entry import main
from grre_jax.cli.sample import from_arguments, add_parser
from grre_jax.config import Config, EvaluationConfig, SamplingConfig
from grre_jax.generation.prompts import WRITTEN_FIELDS
from grre_jax.rollouts import Group
from grre_jax.sampling import SamplingDistribution
from grre_jax.training.actors.calls import evaluation_settings
from grre_jax.training.actors.explorer import stored_settings
from grre_jax.training.config.fields import fields
from grre_jax.training.config.overrides import override
from grre_jax.training.config.run import from_dict

helps = {}
for command in ("sample", "evaluate"):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main([command, "--help"])
    helps[command] = "--skip-top" in out.getvalue()
config = override(Config("x"), ["--sampling.skip_top", "2", "--evaluation.skip-top", "3"])
parser = argparse.ArgumentParser()
add_parser(parser.add_subparsers())
options = from_arguments(parser.parse_args(["sample", "m", "--prompt", "q", "--skip-top", "4"]))
stored, extra = stored_settings(config.sampling)
lengths = {"prompt": "q", "answer": "", "task": "t", "question_id": "q", "lengths": [1], "tokens": [1], "prompt_tokens": [1]}
group = Group(group_id="g", texts=["a"], rewards=[1.0], extra=extra, **stored, **lengths)
plain = Group(group_id="g", texts=["a"], rewards=[1.0], **stored, **lengths)
try:
    SamplingConfig(skip_top=-1)
    refused = ""
except ValueError as error:
    refused = str(error)
scaled = np.float32([[0, 1, 2, 3]])
threshold = SamplingDistribution.of(config.sampling).keep_threshold(scaled)
print(json.dumps({
    "helps": helps,
    "reference": sorted(f.name for f in fields(config) if f.name.endswith("skip_top") and f.meaning),
    "stored config": from_dict(json.loads(config.to_json())) == config,
    "sampling": config.sampling.skip_top,
    "evaluation": evaluation_settings(config).skip_top,
    "kl": EvaluationConfig().draws_from_policy and not config.evaluation.draws_from_policy,
    "line": [options.params.to_json()["skip_top"], "skip_top" in WRITTEN_FIELDS],
    "refused": refused,
    "group": [extra, group.truncated, plain.truncated],
    "kept": int((scaled >= threshold).sum()),
}))
"""


def test_only_the_record_and_the_format_of_groups_name_a_parameter():
    naming = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = (
                *(getattr(node, name, None) for name in ("id", "attr", "arg")),
                node.value if isinstance(node, ast.Constant) else None,
                getattr(getattr(node, "target", None), "id", None),
            )
            if "min_p" in names:
                naming.add(file.relative_to(PACKAGE).as_posix())
    assert naming <= NAMING and "sampling_params.py" in naming


def test_a_new_field_is_everywhere(tmp_path):
    """A line of the record with its entry, and a class of its maths, give it to the library, the
    configuration, both commands, evaluations and stored groups.
    """
    shutil.copytree(PACKAGE, tmp_path / "grre_jax", ignore=shutil.ignore_patterns("__pycache__"))
    record = tmp_path / "grre_jax" / "sampling_params.py"
    text = record.read_text()
    for old, new in (
        ("    max_new_tokens: int", FIELD),
        ("        max_new_tokens (at least 1)", ENTRY),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    record.write_text(text)
    with open(tmp_path / "grre_jax" / "sampling" / "distributions" / "truncation.py", "a") as maths:
        maths.write(MATHS)
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "helps": {"sample": True, "evaluate": True},
        "reference": ["evaluation.skip_top", "sampling.skip_top"],
        "stored config": True,
        "sampling": 2,
        "evaluation": 3,
        "kl": True,
        "line": [4, True],
        "refused": "skip_top: expected at least 0, got -1",
        "group": [{"sampling_params": {"skip_top": 2}}, True, False],
        "kept": 1,
    }


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("temperature", -0.1, "at least 0"),
        ("temperature", float("nan"), "nan"),
        ("temperature", float("inf"), "finite"),
        ("temperature", None, "a number, got None"),
        ("temperature", "1", "a number, got '1'"),
        ("top_k", -1, "at least 0"),
        ("top_k", 2.5, "a whole number, got 2.5"),
        ("top_k", 2**31, "at most 2147483647"),
        ("top_p", 0, "(0, 1]"),
        ("top_p", 1.1, "(0, 1]"),
        ("min_p", -0.1, "[0, 1]"),
        ("min_p", 1.1, "[0, 1]"),
        ("max_new_tokens", 0, "at least 1"),
        ("stop", ("a", ""), "characters in each"),
        ("stop", ("a\ufffd",), "U+FFFD"),
        ("stop", (3,), "got (3,)"),
        ("stop", 3, "got 3"),
    ],
)
@pytest.mark.parametrize("record", [SamplingParams, SamplingConfig, EvaluationConfig])
def test_values_outside_their_domain(record, name, value, words):
    if record is EvaluationConfig and name == "max_new_tokens":
        assert record().max_new_tokens == 0  # sampling's
        return
    with pytest.raises(ValueError, match=f"^{name}: expected ") as caught:
        record(**{name: value})
    assert words in str(caught.value)


def test_numbers_of_other_types_are_normalised():
    params = SamplingParams(np.float32(0.5), np.int64(3), 1, 0, np.int32(7), ["a", "b"])
    assert params == SamplingParams(0.5, 3, 1.0, 0.0, 7, ("a", "b"))
    assert json.loads(json.dumps(params.to_json())) == {
        "temperature": 0.5, "top_k": 3, "top_p": 1.0, "min_p": 0.0, "max_new_tokens": 7, "stop": ["a", "b"]
    }  # fmt: skip
    assert SamplingParams(stop="a").stop == ("a",)


def test_truncation_and_temperature_change_what_is_drawn():
    assert not SamplingParams(temperature=0.5, max_new_tokens=3, stop=("a",)).truncated
    assert all(SamplingParams(**{name: value}).truncated for name, value in (("top_k", 1), ("top_p", 0.9), ("min_p", 0.1)))  # fmt: skip
    assert SamplingParams(max_new_tokens=3, stop=("a",)).draws_from_policy
    assert not any(SamplingParams(**{name: 0.5}).draws_from_policy for name in ("temperature", "top_p", "min_p"))  # fmt: skip


def test_sections_keep_their_flat_names_and_defaults():
    config = Config("x")
    for section in (config.sampling, config.evaluation):
        assert {*SamplingParams.names()} <= vars(section).keys()
    assert (config.sampling.max_new_tokens, config.evaluation.max_new_tokens) == (8, 0)
    assert dataclasses.asdict(config)["sampling"]["stop"] == ()

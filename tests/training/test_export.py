"""A written policy is the policy: same log-probs, same tokenizer, and it says what it was
trained on.
"""

import pytest
from flax import nnx

from grre_jax import tasks
from grre_jax.training import build
from grre_jax.training.data import sources
from grre_jax.training.export import write_model


@pytest.fixture(scope="module")
def parts(make_config, tmp_path_factory):
    return build.build(make_config(tmp_path_factory.mktemp("export") / "run"))


@pytest.fixture(scope="module")
def written(parts, tmp_path_factory):
    output = tmp_path_factory.mktemp("export") / "deep" / "model"
    output.parent.mkdir()
    write_model(parts, *nnx.split(parts.model), output, step=5, contains={"b/test", "a/test"})
    return output


def test_the_next_run_starts_from_it_and_knows_its_past(make_config, parts, written, tmp_path):
    following = build.build(make_config(tmp_path / "next", f"--model.path {written}"))
    assert sources.training_contents(following, ()) == {"a/test", "b/test", "arithmetic/train"}
    assert (
        following.model.embed[...].sharding.mesh == following.mesh
    )  # loaded to where it is trained
    assert following.tokenizer.encode_prompt("1+2>") == parts.tokenizer.encode_prompt("1+2>")
    contains = sources.training_contents(following, ())
    folder = tmp_path / "again"
    write_model(following, *nnx.split(following.model), folder, step=0, contains=contains)
    again = tasks.load_tokenizer(folder).encode_prompt("1+2>")
    assert again == parts.tokenizer.encode_prompt("1+2>")
    assert build.model_contents(make_config(tmp_path, f"--model.path {folder}")) == contains

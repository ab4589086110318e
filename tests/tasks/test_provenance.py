"""What data sets say of reward functions and chat templates."""

import hashlib
import types

import grre_jax
from grre_jax import tasks
from grre_jax.tasks.provenance import reward_name, template_digest


class Own:
    name, reward_version = "own", "7"


def test_rewards_have_a_function_and_a_version():
    assert reward_name(Own()) == f"{Own.__module__}:Own.verify 7"
    name = reward_name(tasks.build("gsm8k"))
    assert name == f"grre_jax.tasks.gsm8k:GSM8K.verify {grre_jax.__version__}"


def test_templates_have_a_digest():
    def digest(template):
        backend = types.SimpleNamespace(chat_template=template)
        return template_digest(types.SimpleNamespace(tokenizer=backend))

    assert digest("{{ x }}") == hashlib.sha256(b"{{ x }}").hexdigest()
    assert digest({"b": "1", "a": "2"}) == digest({"a": "2", "b": "1"}) != digest({"a": "1"})
    assert digest(None) == "" == template_digest(tasks.build("arithmetic").tokenizer)

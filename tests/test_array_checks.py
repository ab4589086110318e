"""Array annotations are checked while the tests run."""

import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from grre_jax.models import rotary


def test_a_wrong_shape_and_a_wrong_dtype_are_found():
    x, table = jnp.ones((2, 3, 4, 8)), jnp.ones((2, 3, 4))
    assert rotary.rotate(x, table, table).shape == x.shape
    with pytest.raises(TypeCheckError):
        rotary.rotate(x, table[..., :2], table)
    with pytest.raises(TypeCheckError):
        rotary.rotate(x.astype(jnp.int32), table, table)

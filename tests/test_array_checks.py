"""Array annotations are checked while the tests run."""

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError

from grre_jax.models import rotary
from grre_jax.objectives import batch


def test_a_wrong_shape_and_a_wrong_dtype_are_found():
    x, table = jnp.ones((2, 3, 4, 8)), jnp.ones((2, 3, 4))
    assert rotary.rotate(x, table, table).shape == x.shape
    with pytest.raises(TypeCheckError):
        rotary.rotate(x, table[..., :2], table)
    with pytest.raises(TypeCheckError):
        rotary.rotate(x.astype(jnp.int32), table, table)


def test_arrays_of_numpy_are_arrays():
    partition = batch.segment_groups(np.array([0, 0, 1]))
    assert partition.sum(np.array([1.0, 2.0, 3.0])).tolist() == [3.0, 3.0, 3.0]


def test_functions_that_check_their_arguments_say_so_themselves():
    with pytest.raises(ValueError, match="groups"):
        batch.group_ids_array(np.array([0.5]))

"""The threshold of any numbers, with ties and tokens that cannot be drawn. (Every truncation at
scaled logits, which are at most 0: test_distribution.)
"""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from grre_jax.sampling.distributions.truncation import TopK

ROWS, VOCAB = 3, 17
# A grid of few values makes ties; the numbers beside it have any exponent. Above -90, so that no
# probability is lost to float32's range.
VALUES = st.one_of(
    st.sampled_from([-np.inf, -3.0, -1.5, -1.0, -0.0, 0.0, 0.5, 2.0]),
    st.floats(-40, 40, width=32, allow_subnormal=False),
    st.floats(-(2.0**-100), 2.0**-100, width=32, allow_subnormal=False),
)
ROW = arrays.arrays(np.float32, (ROWS, VOCAB), elements=VALUES)
threshold = jax.jit(TopK.threshold)
FLOORS = st.sampled_from([-np.inf, -2.0, -0.0, 0.0, 0.5])


@settings(max_examples=150, deadline=None)
@given(ROW, st.integers(1, VOCAB - 1), FLOORS)
def test_top_k_keeps_the_k_largest_and_their_ties(scaled, k, floor):
    scaled[:, 3] = np.maximum(scaled[:, 3], np.maximum(floor, -5.0))  # one at or above the floor
    limit = np.asarray(threshold(TopK(jnp.int32(k)), scaled, jnp.full(ROWS, floor, jnp.float32)))
    last = np.sort(scaled, axis=1)[:, -k]
    assert limit.shape == (ROWS,) and (limit >= np.float32(floor)).all()
    np.testing.assert_array_equal(
        scaled >= limit[:, None], scaled >= np.maximum(last, floor)[:, None]
    )

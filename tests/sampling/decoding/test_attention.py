import numpy as np

from grre_jax.sampling.decoding.attention import SlotAddresses, VisibleTokens, attend
from grre_jax.sampling.decoding.cache import Cache


def test_a_slot_without_visible_tokens_attends_to_zeros(tiny):
    """An idle slot's zeros are finite: what it leaves is multiplied by 0 once it is refilled."""
    config = tiny(num_layers=1).config
    shape = (2, 4, config.num_kv_heads, config.head_dim)
    keys, values = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    queries = np.ones((2, config.num_kv_heads, 1, config.head_dim), np.float32)
    own = np.array([[False] * 4, [True] * 4])
    visible = VisibleTokens(own[:, :0], np.arange(4)[None], own, np.array([0, 3]))
    cache = Cache.of(keys, values, np.float32, 4)
    attended = attend(queries, None, cache, visible, SlotAddresses(None, None), config, False)
    assert (np.asarray(attended[0]) == 0).all()
    assert np.isfinite(attended[1]).all() and (np.asarray(attended[1]) != 0).all()

"""Types of arrays that several modules of the model take: packed rows of tokens, and what belongs
to each token.
"""

from jaxtyping import Array, Float, Integer

Ids = Integer[Array, "rows length"]  # of tokens, segments, positions, columns
Stream = Float[Array, "rows length width"]
Queries = Float[Array, "rows queries kv group dim"]  # by key-value group
Keys = Float[Array, "rows keys kv dim"]  # and values
Routes = Integer[Array, "rows length layers k"]  # experts of each token

"""A run's configuration: the record of the whole, the sections that belong to no other room, files,
overrides and the descriptions of the fields.

`grre_jax.config` exports these records and those of the other rooms.
"""

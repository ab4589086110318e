"""docs/rollouts.md says what the code says."""

import re
from pathlib import Path

from grre_jax.domains import documented
from grre_jax.rollouts import encoding, schema

DOCUMENT = (Path(__file__).parents[2] / "docs" / "rollouts.md").read_text()


def test_every_field_is_documented_as_the_schema_has_it():
    table = DOCUMENT.partition("`checksum` (int64)")[0]
    found = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (.+) \|$", table, re.MULTILINE)
    named = [(name, kind.removesuffix(" array")) for name, kind, _ in found]
    assert named == list(encoding.FIELDS)
    meanings = documented(schema.Group)
    for name, _, meaning in found:
        if name in meanings and name != "texts":
            assert meanings[name][1][1:] in meaning
    assert f"The schema is version {schema.SCHEMA_VERSION}." in DOCUMENT

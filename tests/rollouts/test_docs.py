"""docs/rollouts.md says what the code says."""

import re
from pathlib import Path

from grre_jax.domains import documented
from grre_jax.rollouts import encoding, manifest, schema
from grre_jax.rollouts.tools.exchange import importers, rows
from grre_jax.rollouts.tools.expression import values

DOCUMENT = (Path(__file__).parents[2] / "docs" / "rollouts.md").read_text()


def test_every_field_is_documented_as_the_schema_has_it():
    table = DOCUMENT.partition("`checksum` (int64)")[0]
    found = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (.+) \|$", table, re.MULTILINE)
    named = [(name, kind.removesuffix(" array")) for name, kind, _ in found]
    assert named == list(encoding.FIELDS)
    meanings = documented(schema.Group)
    for name, _, meaning in found:
        if name in meanings and name != "texts":
            _, own = meanings[name]
            assert own[1:] in meaning
    assert f"The schema is version {schema.SCHEMA_VERSION}." in DOCUMENT


def test_every_field_of_a_completion_is_documented():
    table = DOCUMENT.partition("each row of one completion, has")[2].partition("All other fields")[
        0
    ]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(rows.COMPLETION_FIELDS)
    assert all(f"`{name}`" in DOCUMENT for name in (*schema.MESSAGE_FIELDS, *importers.ALIASES))


def test_every_name_of_an_expression_is_documented(make_group):
    assert all(f"\n| `{name}` |" in DOCUMENT for name in values(make_group(0)))


def test_every_manifest_field_import_format_and_command_is_documented():
    for name in manifest.Entry.__dataclass_fields__:
        assert f"`{name}`" in DOCUMENT
    for kind in importers.FORMATS:
        assert f"| `{kind}` |" in DOCUMENT

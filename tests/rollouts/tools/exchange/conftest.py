import pytest

from grre_jax.errors import DataError, UsageError
from grre_jax.rollouts import encoding, writer
from grre_jax.rollouts.tools.exchange import importers


def drain(folder, datasets):
    """Takes in data sets without writing them; what a record holds is what was to be written."""
    for dataset in datasets:
        writer._provenance(dataset)
        for group in dataset.groups:
            group.validate()
            assert encoding.decode(encoding.encode(group)).num_completions == group.num_completions
    return ["x"]


@pytest.fixture
def walk(tmp_path, monkeypatch):
    """`walk(kind, texts, place="line 1")`: imports each text without writing; returns how many were
    read, after a check that the others are refused by file, line and field.
    """
    monkeypatch.setattr(writer, "write_all", drain)
    path = tmp_path / "a.jsonl"

    def run(kind, texts, place="line 1", **options):
        read = 0
        for text in texts:
            path.write_bytes(text.encode(errors="surrogatepass"))
            try:
                importers.import_rows(kind, path, tmp_path / "none", task="t", **options)
                read += 1
            except (DataError, UsageError) as error:
                message = str(error)
                assert message.startswith(f"{path}, {place}"), (text[:200], message)
                assert "JSON" in message or "field" in message, (text[:200], message)
            except Exception as error:
                raise AssertionError(f"{text[:300]}: {error!r}") from error
        return read

    return run

import pytest


@pytest.fixture
def printed(capsys, monkeypatch):
    """All that was printed, on lines of 220 columns."""
    monkeypatch.setenv("COLUMNS", "220")
    text = []

    def read():
        text.append(capsys.readouterr().out)
        return "".join(text)

    return read

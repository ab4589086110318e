"""Object stores as fsspec opens them, without a memory of what they held, and with one kind of error."""

import contextlib
from collections.abc import Iterator
from typing import Any

from grre_jax.errors import DataError, UsageError


def opened(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL and the path in it.

    Raises:
      UsageError: fsspec does not know the URL's scheme, or lacks the package for it.
    """
    from fsspec.core import url_to_fs

    try:
        # Without a cache of listings: other writers add to them.
        return url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise UsageError(f"{url}: {error}; pip install 'grre-jax[s3]' for s3://, 'grre-jax[gs]' for gs:// (gcsfs).") from error
    except ValueError as error:
        raise UsageError(f"{url}: {error}; use a path, s3:// or gs://.") from error


@contextlib.contextmanager
def as_os_error() -> Iterator[None]:
    """Stores report a lost connection, a refusal and the like by errors of their clients' own classes."""
    try:
        yield
    except (OSError, DataError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error

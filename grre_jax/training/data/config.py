"""The configuration's `data` section: the stored groups that a run learns from.

`mix` is text that a Python configuration and the command line give alike.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

from grre_jax.domains import AtLeastMinusOne, ConfigError, Record
from grre_jax.training.data.dynamic_sampling import MAX_ROUNDS

EXPERT = ":expert"


@dataclasses.dataclass(frozen=True)
class MixEntry:
    """One folder of a mix.

    Attributes:
        path: the rollout folder.
        share: of a step's groups, above 0 and up to 1.
        expert: all its completions are treated as an expert's, regardless of its records.
    """

    path: str
    share: float
    expert: bool = False


def parse_mix(text: str) -> tuple[MixEntry, ...]:
    """Parses the entries of "FOLDER=SHARE,FOLDER=SHARE:expert"; an empty text has none.

    A folder's name may contain any character except a comma.

    Raises:
        ConfigError: an entry that cannot be read, a folder named twice, or shares that add to more
            than 1.
    """
    entries: list[MixEntry] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        path, _, share = word.removesuffix(EXPERT).rpartition("=")
        try:
            number = float(share)
        except ValueError:
            number = 0.0
        if not path or not 0 < number <= 1:
            domain = f"FOLDER=SHARE or FOLDER=SHARE{EXPERT} between commas, a share in (0, 1]"
            raise ConfigError("mix", domain, word)
        if path in (entry.path for entry in entries):
            raise ConfigError("mix", f"one share for each folder, not two for {path}", text)
        entries.append(MixEntry(path, number, word.endswith(EXPERT)))
    if total_share(entries) > 1:
        raise ConfigError("mix", "shares that add to at most 1", text)
    return tuple(entries)


def total_share(entries: tuple[MixEntry, ...] | list[MixEntry]) -> float:
    """Returns the sum of the shares; exactly 1 if it differs from 1 by rounding only."""
    total = sum(entry.share for entry in entries)
    return 1.0 if abs(total - 1) < 1e-6 else total


@dataclasses.dataclass(frozen=True)
class DataConfig(Record):
    """Stored rollouts to learn from, instead of what the run samples or beside it.

    Args:
        path (a path or URL): a rollout folder to train on; empty to sample.
        mix ("FOLDER=SHARE,FOLDER=SHARE:expert"): these shares of every step's groups come from
            these rollout folders, the rest from `path` or, where that is empty, from sampling. With
            ":expert" all completions of a folder count as an expert's, whatever its records say.
        drop_zero_variance: leave out stored groups whose rewards are all equal. Under asymre they
            would still imitate; an expert's stay where the objective asks for experts, and
            trajectories where its option returns is "turns".
        drop_over_limit: leave out stored groups over sampling.max_prompt_tokens or
            sampling.max_new_tokens, which are an error otherwise.
        max_staleness: largest age of the data: of stored groups in policy versions before their
            folder's newest, of replayed groups in updates. A regime that samples older data is
            refused. -1 for any age.
        order: order of stored groups: shuffled anew each epoch, as they were sealed, or by policy
            version, newest first.
        dynamic_sampling: how many other questions are tried where a sampled group has no signal;
            the group is left out if none gives one. 0 trains on groups as sampled.
    """

    path: str = ""
    mix: str = ""
    drop_zero_variance: bool = True
    drop_over_limit: bool = False
    max_staleness: AtLeastMinusOne = -1
    order: Literal["shuffled", "stored", "newest"] = "shuffled"
    dynamic_sampling: Annotated[int, f"[0, {MAX_ROUNDS}]"] = 0

    def _validate(self) -> None:
        if total_share(self.entries) == 1 and self.path:
            raise ConfigError("path", "empty, since the shares of mix add to 1", self.path)

    @property
    def entries(self) -> tuple[MixEntry, ...]:
        """The entries of `mix`."""
        return parse_mix(self.mix)

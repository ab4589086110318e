"""The two ways a person's request can fail, and the exit status the command line gives each."""


class UsageError(Exception):
    """What was asked for is wrong: an unknown field, a bad value, a run folder that exists. Exit status 2."""

    exit_status = 2


class DataError(Exception):
    """What lies on disk is wrong or missing: a corrupt shard, an empty data set, an unsupported checkpoint. Exit status 1."""

    exit_status = 1

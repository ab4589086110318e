"""Commands from Python functions: a parameter is an argument, a keyword-only one an option, and the
docstring is the help.
"""

import argparse
import dataclasses
import inspect
import re
import sys
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from grre_jax.domains import documented, parse, plain

KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY


@dataclasses.dataclass(frozen=True)
class Processes:
    """Several processes.

    Give the same command in every process. On TPU pods, under Slurm and on GKE the processes find
    each other; elsewhere give these options. They must share the run folder.

    Args:
        coordinator: HOST:PORT of process 0, with a free port of its host.
        num_processes: number of processes; 1 for this one alone, on any machine.
        process_id: index of this process, from 0.
        join_timeout: longest wait for the others at the start, in seconds.
    """

    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    join_timeout: int = 300

    def run(self, work: Callable[[], object]) -> int:
        """Runs `work` with the other processes; returns 0, or the exit status of the signal that
        ended it, which is printed.
        """
        from grre_jax.parallel import processes
        from grre_jax.training.stopping import Stopped

        try:
            with processes.joined(
                self.coordinator,
                self.num_processes,
                self.process_id,
                timeout=self.join_timeout,
                agreed=(Stopped,),
            ):
                work()
        except Stopped as stopped:
            print(f"grre: {stopped}", file=sys.stderr)
            return stopped.exit_status
        return 0


class _Parameter(NamedTuple):
    name: str
    annotation: Any
    default: Any
    required: bool
    word: str  # its name, or --name for an option


def add_command(
    commands: argparse._SubParsersAction, run: Callable[..., int | None], *, computes: bool = False
) -> None:
    """Adds a function as a command of its name.

    A parameter is an argument and a keyword-only one an option; bool is a flag, a tuple may be
    given several times, and a dataclass stands for its fields. `words` gets the words that are left
    over, which override fields of a configuration.

    Args:
        commands: of the command line, or of one of its commands.
        run: the function; returns the exit status, or None for 0.
        computes: the process runs JAX programs.
    """
    summary, description = _summary(run)
    parser = commands.add_parser(
        run.__name__.strip("_"),
        help=summary,
        description=f"{summary}. {description}",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    takes_fields = "words" in inspect.signature(run).parameters
    parser.set_defaults(run=run, computes=computes, takes_fields=takes_fields)
    _add_parameters(parser, parser, run)


def call(parsed: argparse.Namespace, words: list[str]) -> int:
    """Calls the function of the parsed command; returns the exit status."""
    return parsed.run(**_values(parsed.run, vars(parsed) | {"words": words})) or 0


def configured(config: str, words: list[str], *, computes: bool = False) -> Any:
    """Returns the configuration of a file with the fields that the words override; a process that
    computes keeps compiled programs in the configured folder.
    """
    from grre_jax.machine import keep_compiled
    from grre_jax.training.config.run import load_file, override

    loaded = override(load_file(config), words)
    if computes:
        keep_compiled(loaded.compiled)
    return loaded


def _summary(item: Callable) -> tuple[str, str]:
    """Returns the first line of a docstring without its full stop, and the text before "Args:"."""
    summary, _, rest = inspect.getdoc(item).partition("\n")
    return summary.rstrip("."), " ".join(re.split(r"\n\w+:\n", rest)[0].split())


def _parameters(run: Callable) -> list[_Parameter]:
    """Returns the parameters of a function or a dataclass, whose fields with a default are
    options.
    """
    hints = typing.get_type_hints(run, include_extras=True)
    parameters = []
    for name, parameter in inspect.signature(run).parameters.items():
        required = parameter.default is parameter.empty
        is_option = not required if isinstance(run, type) else parameter.kind is KEYWORD_ONLY
        word = "--" + name.strip("_").replace("_", "-") if is_option else name
        parameters.append(_Parameter(name, hints[name], parameter.default, required, word))
    return parameters


def _add_parameters(
    parser: argparse.ArgumentParser, group: argparse._ActionsContainer, run: Callable
) -> None:
    """Adds the arguments and options of a function or a dataclass to a group of a parser."""
    meanings = documented(run)
    for parameter in _parameters(run):
        if dataclasses.is_dataclass(parameter.annotation):
            inner = parser.add_argument_group(*_summary(parameter.annotation))
            _add_parameters(parser, inner, parameter.annotation)
        elif parameter.name != "words":
            _add_parameter(group, parameter, meanings[parameter.name][1])


def _add_parameter(group: argparse._ActionsContainer, parameter: _Parameter, meaning: str) -> None:
    name, annotation, default, required, word = parameter
    kind = plain(annotation)
    is_option = word != name
    options: dict[str, Any] = {"dest": name, "required": required} if is_option else {}
    notes = [meaning.rstrip(".").replace("%", "%%")]
    if kind is bool:
        options["action"] = "store_true"
    elif typing.get_origin(kind) is typing.Literal:
        options["metavar"] = "|".join(typing.get_args(kind))
    if typing.get_origin(kind) is tuple and is_option:
        options["action"] = "append"
        notes.append("may be given several times")
    elif typing.get_origin(kind) is tuple:
        options["nargs"] = "+" if required else "*"
    elif isinstance(default, int | float | str) and default:
        notes.append(f"{default} if not given")
    group.add_argument(word, help="; ".join(notes), **options)


def _values(run: Callable, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the keyword arguments of a function or a dataclass, without those left out."""
    values = {}
    for name, annotation, _, _, word in _parameters(run):
        if dataclasses.is_dataclass(annotation):
            values[name] = annotation(**_values(annotation, given))
        elif isinstance(value := given.get(name), str):
            values[name] = parse(word, annotation, value)
        elif name in given:
            values[name] = value
    return values

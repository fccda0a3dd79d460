"""The entry point: collects the verbs, runs one, and turns whatever happens into a message and an exit status.

0: done, and the answer is yes. 1: done, and the answer is no. 2: the input can't be used as it is. 3: a defect of
Partita or of a plugin. 130: interrupted. 141: whoever read our output went away.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Sequence

import typer
from typer.main import get_command_name
from typer.models import CommandInfo

from partita.errors import PartitaError, is_interrupt
from partita.hooks import plugins

# The base of all that the parser raises. It is found from here because typer has moved it between packages.
ParserError = next(
    base for base in typer.BadParameter.__mro__ if issubclass(base, Exception) and base.__name__ == "ClickException"
)

# Of a question's whole time an eighth went into looking for garbage among what imports make, and keep: at every 700 new
# objects by Python's own setting.
OBJECTS = 100_000

HELP = """Plan how many devices train one model, and say why.

No GPU is needed to ask. --debug, anywhere on the line, adds the traceback to an error.

Exit status: 0 done, 1 the answer is no (nothing fits, say), 2 the input is wrong.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``partita`` with these arguments (default: the process's own) and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Taken out here and not declared, so that it stands before or after the verb, and for every verb of every plugin.
    # Only `run` takes out its own: what follows a script's name is the script's.
    debug = "--debug" in arguments
    verb = next((argument for argument in arguments if argument != "--debug"), None)
    until = arguments.index("run") if verb == "run" else len(arguments)
    if argv is None and verb != "run":
        # The process is ours, and short. One that trains is the trainer's.
        gc.set_threshold(OBJECTS)
    arguments = [argument for argument in arguments[:until] if argument != "--debug"] + arguments[until:]
    try:
        app = application()
        app.registered_commands = _asked(app.registered_commands, verb)
        status = app(args=arguments, prog_name="partita", standalone_mode=False)
        # The parser turns an interrupt into this status and says nothing.
        return _failed("interrupted", 130, debug) if status == 130 else int(status or 0)
    except ParserError as error:
        return _failed(_usage(error), 2, debug)
    except PartitaError as error:
        return _failed(str(error), error.exit_status, debug)
    except (KeyboardInterrupt, typer.Abort):
        return _failed("interrupted", 130, debug)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except Exception as error:
        if is_interrupt(error):
            # Within compiled code.
            return _failed("interrupted", 130, debug)
        where = traceback.extract_tb(error.__traceback__)[-1]
        return _failed(
            f"this is a defect, not your input: {type(error).__name__}: {error} ({where.name}, line {where.lineno}); "
            "the same command with --debug shows the traceback",
            3,
            debug,
        )


def application() -> typer.Typer:
    """The command line with every plugin's verbs."""
    # Plain help: tables and colours of the help cost start-up time and break where there is no terminal.
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, help=HELP)
    app.callback(invoke_without_command=True)(_root)
    plugins().hook.partita_verbs(app=app)
    return app


def _asked(commands: list[CommandInfo], verb: str | None) -> list[CommandInfo]:
    """The verb's own command, or all where there is none of the name: reading all their options takes a while."""
    own = [one for one in commands if verb == (one.name or get_command_name(getattr(one.callback, "__name__", "")))]
    return own or commands


def _root(context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        from partita import __version__

        typer.echo(f"partita {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


def _usage(error: Exception) -> str:
    """The parser's message, and where help is."""
    context = getattr(error, "ctx", None)
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    # Some messages end with a question ("Did you mean …?"), and some of those with a full stop after it.
    message = message.rstrip(".")
    stop = "" if message.endswith("?") else "."
    return f"{message}{stop} See {context.command_path if context else 'partita'} --help"


def _failed(message: str, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"partita: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())

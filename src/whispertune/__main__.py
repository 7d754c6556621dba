"""`python -m whispertune`, and the command `whispertune`."""

import signal


def main() -> None:
    """Run the command line; until it is loaded a Ctrl-C just ends the process, as one of C would end."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, and stays so
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from whispertune import cli

    cli.main()


if __name__ == "__main__":
    main()

"""`python -m whispertune`."""

from whispertune.cli import main

main()

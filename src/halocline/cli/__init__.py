"""The command line: what a person, or cron, asks of a database without writing a program.

main.py      commands and their options           errors.py   an error is a line and a code
maintain.py  `maintain`, with Spark or without    show.py     news of a round on a terminal
serve.py     `serve`, until it is told to stop    log.py      `log`, entries and nodes in words
"""

from halocline.cli.main import app

__all__ = ["app"]

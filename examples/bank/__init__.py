"""The bank of the demo: its tables, the work on them, and the chapters that `demo.py` tells.

tables.py   accounts, transfers, audits; a transfer and an audit
writers.py  threads that do one thing over and over, counted
screen.py   a live terminal, or plain lines      report.py   what was shown, with figures
live.py -> race.py -> crash.py (child.py) -> undo.py         the four chapters
"""

"""The bank of the demo: its tables, the work on them, and the chapters of its story.

    tables.py    accounts, transfers, audits; a transfer and an audit
    writers.py   threads that do one thing over and over, counted
    screen.py    a live terminal, or plain lines
    report.py    what was shown, with figures
    story.py     the six chapters: live.py, race.py (peer.py), crash.py (child.py), undo.py,
                 settle.py (orders.py, chart.py), spark.py

Start with tables.py, then live.py.
"""

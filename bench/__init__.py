"""Benchmarks: the engine beside its peers, in one run, on one disk.

    python -m bench [--only NAME] [--quick] [--peers-only]
    python -m bench --against REV [--only NAME] [--quick]

A ratio is only worth reading when both sides ran in the same minute on the same machine with the
same data, so that is the only way anything is measured here. Read harness.py first, then cases.py.
The second form runs another revision of the project beside this one, row by row (against.py).
"""

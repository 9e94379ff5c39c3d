"""Schema: columns and their types, values and how they are checked, cast, ordered and encoded.

    what a caller writes --define--> Schema --generated checks--> canonical rows, keys, Arrow tables

No other room is needed here; every other room works on what this one has made canonical.
"""

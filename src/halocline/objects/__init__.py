"""Immutable Parquet objects: write, read, find, and know what is inside without reading.

    jobwriter.py  files of a job, whoever writes them          -> JobWriter, SharedJob
    write.py      a sorted table -> bytes + statistics
    stats.py      what the catalog keeps of a file             -> ObjectStats, ObjectFile
    read.py       verified reading                             -> Reader
    finder.py     one key, or many, in one object              -> Finder
    pool.py       memory with a budget                         -> Pool
    shelf.py      the store with its reader and pools          -> Shelf
    zonemap.py    bounds of a column                           -> Zonemap
    bloom.py      Parquet's split-block bloom filter
    columns.py    hidden columns, ids, encodings
    keybytes.py   keys of whole tables as bytes, and their hashes
    batch.py      many keys to look for, keyblock.py: where one looks for them
    blocks.py     decoded blocks, kept in the pools
    directory.py  where the pages of a block are
    splice.py     a small Parquet file around some pages
    footer.py     what Parquet says about a finished file
    thrift.py     the encoding of that

Start with docs/formats/object.md, then write.py and read.py.
"""

from halocline.objects.finder import Finder
from halocline.objects.jobwriter import JobWriter, SharedJob
from halocline.objects.pool import Pool
from halocline.objects.read import ObjectReader
from halocline.objects.shelf import Shelf
from halocline.objects.stats import ObjectFile, ObjectStats
from halocline.objects.zonemap import Zonemap

__all__ = [
    "Finder",
    "JobWriter",
    "ObjectFile",
    "ObjectReader",
    "ObjectStats",
    "Pool",
    "SharedJob",
    "Shelf",
    "Zonemap",
]

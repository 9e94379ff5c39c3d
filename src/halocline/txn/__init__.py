"""Transactions: private workspace, conflict check, commit pipeline.

Start with transaction.py (what a caller holds), then workspace.py, conflict.py and commit.py.
"""

from halocline.txn.commit import Committer
from halocline.txn.core import Core
from halocline.txn.rerun import Rerun
from halocline.txn.transaction import Transaction

__all__ = ["Committer", "Core", "Rerun", "Transaction"]

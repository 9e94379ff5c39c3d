"""What time takes away: the floor rises and what lies below it is freed."""

from halocline.checkpoint.gc import collect_garbage

__all__ = ["collect_garbage"]

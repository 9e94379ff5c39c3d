"""Version: of the package, for whoever must not import its front door."""

__version__ = "0.1.0"

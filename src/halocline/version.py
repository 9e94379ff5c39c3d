"""The version of the package, for modules that must not import its front door."""

__version__ = "0.1.0"

"""`python -m halocline`: the command line."""

from halocline.cli import app

if __name__ == "__main__":
    app(prog_name="halocline")

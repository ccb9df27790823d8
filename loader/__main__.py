"""`python -m loader`: look at checkpoints, prove them, load them, and measure how fast that is."""

from loader.cli.app import app

if __name__ == "__main__":
    app(prog_name="python -m loader")

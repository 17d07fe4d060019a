"""`python -m hetrdzv.cli.hetctl` is `hetctl`."""

from hetrdzv.cli.start import hetctl

if __name__ == "__main__":
    hetctl()

"""`python -m hetrdzv.cli.hetctl` is `hetctl`."""

from hetrdzv.cli.hetctl.main import main

if __name__ == "__main__":
    main()

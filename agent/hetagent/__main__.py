"""`python -m hetagent` is hetagent."""

from hetagent.cli import main

if __name__ == "__main__":
    main()

"""`python -m electrakit` is `electra`."""

from electrakit.cli import main

if __name__ == "__main__":
    main()

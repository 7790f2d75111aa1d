"""`python -m electrakit` is `electra`."""

from electrakit.cli.main import main

if __name__ == "__main__":
    main()

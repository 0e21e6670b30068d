"""`python -m drumline` is the command `drumline`."""

from drumline.cli.main import main

if __name__ == "__main__":
    main()

"""``python -m hushstream.cli`` is the ``hushstream`` command."""

from hushstream.cli.main import main

if __name__ == "__main__":
    main()

"""`python -m loader.native`: build what is in C, in place."""

import sys

from loader.native.build import NotBuilt, build


def main() -> int:
    """Build, and say where the library is."""
    try:
        sys.stdout.write(f"{build()}\n")
    except NotBuilt as error:
        sys.stderr.write(
            f"error: {error}\n\nhint: install one (apt-get install gcc libc6-dev), or name it by CC\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The options that may stand before the command. Imports nothing: it is read before all else."""

# Name -> takes a value.
LEADING = {
    "-H": True,
    "--host": True,
    "-p": True,
    "--port": True,
    "-t": True,
    "--token": True,
    "--url": True,
    "--tls-ca": True,
    "--tls": False,
    "--tls-no-verify": False,
    "--json": False,
}


def split_leading(argv: list[str]) -> tuple[list[str], list[str]]:
    """Cut the options before the command off; ``-t`` there is the token, whatever comes behind."""
    leading: list[str] = []
    place = 0
    while place < len(argv):
        name, equals, _ = argv[place].partition("=")
        if name not in LEADING:
            break
        leading.append("--token" if argv[place] == "-t" else argv[place])
        place += 1
        if LEADING[name] and not equals and place < len(argv):
            leading.append(argv[place])
            place += 1
    return leading, argv[place:]

"""The command line: thin subcommands over the client, and the launcher of the server."""

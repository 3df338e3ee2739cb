"""One file a command: flags in, tables out. `cli.launch` starts the process, `cli.main` finds the command."""

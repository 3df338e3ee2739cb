"""One file a command: flags in, tables out. `cli.launch` starts it, `cli.main` finds it."""

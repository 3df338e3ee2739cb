"""One file a command: flags in, tables out. `cli.main` finds the command; exit codes are its `ExitCode`."""

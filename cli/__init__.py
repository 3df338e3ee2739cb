"""One file a command: flags in, tables out."""

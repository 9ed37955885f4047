"""The commands of the command line; each parses its arguments and returns an exit code."""

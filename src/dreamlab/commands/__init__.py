"""The verbs that look after runs; each takes its arguments and returns an exit code."""

"""The types every other package speaks in: records, the workflow contract, config, errors."""

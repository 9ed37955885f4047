"""World models: their protocol, their parts, and how good their dreams are."""

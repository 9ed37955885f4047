"""World models: their protocol, their parts, and open-loop evaluation."""

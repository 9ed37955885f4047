"""Critics: what an action is worth, and the transitions they learn it from."""

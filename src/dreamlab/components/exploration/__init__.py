"""What makes a state worth a visit when no reward says so."""

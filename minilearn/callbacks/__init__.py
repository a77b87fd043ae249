"""Everything that is not the loop: ordered, removable callbacks."""

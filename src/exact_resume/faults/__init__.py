"""What a kill, an error, a power loss or a flipped bit does to ways of saving."""

"""Files that hold state: written whole or not at all, checked before they are read, held against each other."""

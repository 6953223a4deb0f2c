"""The lab's own training run: its model, data, optimizer, and all that it remembers."""

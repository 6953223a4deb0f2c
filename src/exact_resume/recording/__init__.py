"""Programs as they are: any command is run, watched from inside without a change to it, and stopped at an update."""

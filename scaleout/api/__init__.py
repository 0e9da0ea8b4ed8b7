"""What Python users call, and the command line as well: names and values to answers, which know how to be shown."""
